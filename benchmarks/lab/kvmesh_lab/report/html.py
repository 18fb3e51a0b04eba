"""A replay's report as one HTML page that needs nothing else: no scripts, no outside host."""

from typing import Final

from jinja2 import Environment
from markupsafe import Markup

from kvmesh_lab.report.statistics import ReplayReport, metrics
from kvmesh_lab.report.table import find_warnings, format_value, ratio_of, verdict

TEMPLATE: Final = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.title }}: {{ report.trace }}</title>
<style>
:root { color-scheme: light dark; --line: #8884; --good: #00794f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --good: #5fd3a8; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); }
th { text-align: left; font-weight: 600; } td { text-align: right; } td.text { text-align: left; }
.better { color: var(--good); } .worse { color: var(--bad); }
figure { margin: 1rem 0; background: #fff; border-radius: .5rem; padding: .5rem; }
figure svg { width: 100%; height: auto; display: block; }
meter { width: 8rem; }
.warning { border-left: .3rem solid #d98e00; padding-left: .8rem; }
</style>
</head>
<body>
<h1>{{ report.title }}</h1>
<div class="scroll"><table>
<tr><th scope="row">trace</th><td class="text">{{ report.trace }}</td></tr>
{% for name, value in report.facts.items() -%}
<tr><th scope="row">{{ name }}</th><td class="text">{{ value }}</td></tr>
{% endfor -%}
<tr><th scope="row">one infinite cache would hit</th>
<td class="text">{{ "%.1f" | format(100 * report.infinite_hit_rate) }} %</td></tr>
</table></div>
{% for warning in warnings %}<p class="warning" role="note">{{ warning }}</p>{% endfor %}
<h2>Results</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">metric</th>
{%- for run in report.runs %}<th scope="col">{{ run.name }}</th>
{%- if not loop.first %}<th scope="col">/ {{ report.runs[0].name }}</th>{% endif %}{% endfor -%}
</tr></thead>
<tbody>
{% for row in rows -%}
<tr><th scope="row">{{ row.name }}</th>
{%- for cell in row.cells %}<td>{{ cell.value }}</td>
{%- if not loop.first %}<td class="{{ cell.verdict }}">{{ cell.ratio }}
{%- if cell.verdict %} {{ cell.verdict }}{% endif %}</td>{% endif %}{% endfor -%}
</tr>
{% endfor -%}
</tbody></table></div>
<h2>Plots</h2>
<figure role="img" aria-label="Latency distributions, hit rate and load of each run">
{{ plots }}
</figure>
{% for run in report.runs %}
<h2>Who served: {{ run.name }}</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">worker</th><th scope="col">requests</th><th scope="col">share</th>
<th scope="col"></th><th scope="col">hit rate</th><th scope="col">computed tokens</th>
<th scope="col">output tokens</th></tr></thead>
<tbody>
{% for share in run.summary.workers -%}
<tr><th scope="row">{{ share.name }}</th><td>{{ share.requests }}</td>
<td>{{ "%.1f" | format(100 * share.request_share) }} %</td>
<td><meter value="{{ share.request_share }}" aria-label="share of requests"></meter></td>
<td>{{ "%.1f" | format(100 * share.hit_rate) }} %</td>
<td>{{ share.computed_tokens }}</td><td>{{ share.output_tokens }}</td></tr>
{% endfor -%}
</tbody></table></div>
{% if run.summary.errors %}
<h2>Errors: {{ run.name }}</h2>
<table><tbody>
{% for kind, count in run.summary.errors.items() -%}
<tr><th scope="row">{{ kind }}</th><td>{{ count }}</td></tr>
{% endfor -%}
</tbody></table>
{% endif %}
{% endfor %}
</body>
</html>
"""


def render_html(report: ReplayReport, plots_svg: str) -> str:
    """Return the page. `plots_svg` is put in as it is; everything else is escaped."""
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(TEMPLATE)
    return template.render(
        report=report,
        rows=_rows(report),
        warnings=find_warnings(report),
        plots=Markup(plots_svg),  # noqa: S704  our own drawing, its texts escaped by matplotlib
    )


def _rows(report: ReplayReport) -> list[dict[str, object]]:
    columns = [metrics(run.summary) for run in report.runs]
    rows: list[dict[str, object]] = []
    for number, baseline in enumerate(columns[0]):
        cells: list[dict[str, str]] = []
        for column in columns:
            ratio = ratio_of(baseline, column[number])
            cell = {
                "value": format_value(column[number]),
                "ratio": "" if ratio is None else f"×{ratio:.2f}",  # noqa: RUF001  a page can show it
                "verdict": verdict(baseline, column[number]),
            }
            cells.append(cell)
        rows.append({"name": baseline.name, "cells": cells})
    return rows
