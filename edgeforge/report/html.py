"""The report for a person: one page, no script, no file beside it."""

from __future__ import annotations

from html import escape

from edgeforge.gates import Check, figure
from edgeforge.report.record import Report, StageReport

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { padding: .25rem .6rem; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top } td.n { text-align: right; font-variant-numeric: tabular-nums }
.ok { color: #176b2c } .bad { color: #a11; font-weight: 600 } .note { color: #666 }
"""


def render(report: Report) -> str:
    """The whole page."""
    context = "" if report.context is None else f", context {report.context}"
    title = f"{escape(report.model)} for {escape(report.chip)}{context}"
    body = "".join(_stage(s) for s in report.stages)
    cost = escape(f"EdgeForge {report.edgeforge}. " + ". ".join(report.bounds) + ".")
    unseen = "".join(f"<li>{escape(line)}</li>" for line in report.not_seen)
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
            f"<h1>{title}</h1><p>{cost}</p>{body}"
            f"<h2>Not seen</h2><ul>{unseen}</ul></html>\n")


def _stage(stage: StageReport) -> str:
    rows = "".join(_row(check) for check in stage.checks)
    tools = ", ".join(f"{n} {v}" for n, v in stage.tools.items() if v)
    cost = f"{stage.seconds:.1f} s, peak {stage.peak_rss_mib} MiB"
    return (f"<h2>{escape(stage.name)} <span class=note>{cost}</span></h2>"
            f"<table>{rows}</table><p class=note>{escape(tools)}</p>")


def _row(check: Check) -> str:
    verdict = "" if check.threshold is None else "<span class=ok>pass</span>" if check.passed else (
        "<span class=bad>FAIL</span>")
    return (f"<tr><td>{escape(check.name)}<td class=n>{figure(check.value)} {escape(check.unit)}<td>{check.bound}"
            f"<td>{verdict}<td class=note>{escape(check.note)}")
