"""How far a model is from another one: logits, text of many domains, labelled tasks, and how sure that is."""
