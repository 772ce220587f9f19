"""What the model is asked to write: texts of many kinds and languages. These sentences are EdgeForge's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """ask: a user's request, for a model with a chat template. opening: how such a text begins, for one without."""

    ask: str
    opening: str


ENGLISH = (
    Prompt("Write the first pages of a novel about a lighthouse keeper who finds a letter that is not for him.",
           "The letter lay under the lamp when he came up, and it was not for him. He knew the hand, though"),
    Prompt("Write a dialogue between a grandmother and her grandson, who is about to leave for the city.",
           '"You have packed the wrong coat," said his grandmother. "It never snows there," he said.\n\n"'),
    Prompt("Write a letter of complaint to a hotel whose heating did not work, polite but firm.",
           "Dear Sir or Madam,\n\nOn the evening of the ninth we arrived at your hotel, tired and wet, and"),
    Prompt("Give me a recipe for a vegetable soup, with amounts and steps.",
           "Autumn soup with leeks and beans\n\nFor four people you need: 2 leeks, 300 g of white beans,"),
    Prompt("Write a newspaper report about a bridge that was closed after a storm.",
           "The old road bridge will stay closed until Friday, the county said on Tuesday, after a storm"),
    Prompt("Write a poem about the sea in winter.", "Winter harbour\n\nThe boats are pulled up on the stones,\n"),
    Prompt("Explain in simple words how vaccines teach the immune system.",
           "How does a vaccine work? The body keeps a kind of memory of every illness that it has met."),
    Prompt("Tell a bedtime story about a hedgehog who wants to see the moon from near by.",
           "Once upon a time there was a small hedgehog who could not sleep, because the moon was so large"),
    Prompt("My laptop gets hot and slow when I have many tabs open. What can I do?",
           "Q: My laptop gets hot and slow when many tabs are open. What can I do?\nA:"),
    Prompt("Summarise the causes of the First World War for a school class.",
           "The war that began in the summer of 1914 had many causes. Among the most important were"),
    Prompt("Write a Python function that finds the longest word in a text file, and explain it.",
           "def longest_word(path):\n    \"\"\"Return the longest word in a text file.\"\"\"\n"),
    Prompt("A train leaves at 9:40 and arrives at 13:05, with a stop of 25 minutes. How long does it drive?",
           "Problem 7. A train leaves at 9:40 and arrives at 13:05, with a stop of 25 minutes. Solution:"),
    Prompt("Write an email to a colleague who forgot to send the figures for the report.",
           "Subject: Figures for the March report\n\nHi Tom,\n\nI am putting the report together and"),
    Prompt("Describe a walk through a market in the early morning, with its smells and voices.",
           "Before six the market belongs to those who carry things. Crates of oranges come down"),
    Prompt("Give a speech for the wedding of your best friend, warm and funny.",
           "Good evening, everyone. For those who do not know me, I am the one who lost the rings, and"),
    Prompt("What were the main rules of daily life in a monastery of the Middle Ages?",
           "Daily life in a medieval monastery followed the hours of prayer. Long before dawn the bell"),
)

OTHER_LANGUAGES = (
    Prompt("Raconte une courte histoire : un boulanger découvre qu'un chat vole son pain chaque nuit.",
           "Chaque matin il manquait un pain. Le boulanger comptait, recomptait, et ne comprenait pas."),
    Prompt("Schreibe einen Brief an eine Freundin, die du seit zehn Jahren nicht gesehen hast.",
           "Liebe Anna, zehn Jahre sind vergangen, seit wir uns am Bahnhof verabschiedet haben, und"),
    Prompt("Explica cómo se prepara una tortilla de patatas, paso a paso.",
           "Para preparar una tortilla de patatas se necesitan cuatro huevos, medio kilo de patatas y"),
    Prompt("请写一个小故事：一个老渔夫在海边捡到一个会说话的瓶子。",
           "从前，海边住着一个老渔夫。有一天早上，他在沙滩上捡到一个瓶子，"),
    Prompt("Опиши зимнее утро в маленьком городе.", "Утром весь город был белым. Снег шёл всю ночь, и на улицах"),
    Prompt("Scrivi una notizia di giornale su una festa di paese interrotta dalla pioggia.",
           "La festa del paese è stata interrotta ieri sera da un forte temporale. Gli abitanti"),
    Prompt("Escreva um diálogo entre um médico e um paciente que não consegue dormir.",
           "— Há quanto tempo o senhor não dorme bem? — perguntou o médico. — Desde o inverno,"),
    Prompt("日本の四季について、短い作文を書いてください。",
           "日本には四つの季節があります。春になると、桜の花が咲き、"),
    Prompt("Explique en termes simples pourquoi le ciel est bleu.",
           "Pourquoi le ciel est-il bleu ? La lumière du soleil contient toutes les couleurs, mais"),
    Prompt("Erkläre, wie ein Fahrrad im Gleichgewicht bleibt.",
           "Warum fällt ein Fahrrad nicht um? Solange es rollt, lenkt der Fahrer, oft ohne es zu merken,"),
    Prompt("Escribe un poema sobre un río que atraviesa la ciudad.", "El río\n\nPasa el río sin mirar las casas,\n"),
    Prompt("请解释为什么我们需要睡眠。", "为什么人需要睡眠？科学家发现，睡觉的时候，大脑"),
    Prompt("Напиши рецепт борща.", "Для борща нужны свёкла, капуста, картофель, морковь и лук. Сначала"),
    Prompt("اكتب قصة قصيرة عن طفل وجد مفتاحا قديما.", "وجد الطفل مفتاحا قديما تحت الشجرة، ولم يعرف"),
    Prompt("एक किसान और उसके बैल के बारे में एक छोटी कहानी लिखिए।", "एक गाँव में एक किसान रहता था। उसके पास एक बूढ़ा बैल था, जो"),
    Prompt("Napisz krótki list do sąsiada, którego pies szczeka w nocy.",
           "Szanowny Panie, piszę w sprawie psa, który od kilku tygodni szczeka w nocy, i"),
)
