"""Grafana's panels as these dashboards use them: one look, Prometheus below all of them."""

from collections.abc import Sequence
from typing import Final, Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${source}")
WIDTH: Final = 24  # Grafana's columns
HEIGHT: Final = 8

Unit = Literal["short", "bytes", "s", "none", "percentunit"]
Query = tuple[str, str]  # PromQL, legend


def chart(
    title: str,
    *queries: Query,
    unit: Unit = "short",
    tells: str = "",
    span: int = 12,
    is_stacked: bool = False,
) -> timeseries.Panel:
    """Numbers over time; stacked where they sum to something."""
    legend = (
        common.VizLegendOptions().display_mode(words.LegendDisplayMode.LIST).show_legend(show_legend=True)
    )
    panel = (
        timeseries.Panel()
        .title(title)
        .description(tells)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(span)
        .height(HEIGHT)
        .fill_opacity(40 if is_stacked else 0)
        .legend(legend.placement(words.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI))
    )
    if is_stacked:
        panel = panel.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL))
    for target in _targets(queries):
        panel = panel.with_target(target)
    return panel


def figure(title: str, query: str, *, unit: Unit = "short", tells: str = "", span: int = 4) -> stat.Panel:
    """One number, now."""
    [target] = _targets([(query, "")])
    return (
        stat.Panel()
        .title(title)
        .description(tells)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .with_target(target.instant())
    )


def listing(title: str, query: str, *, tells: str = "") -> table.Panel:
    """A row for each series, its labels as columns."""
    [target] = _targets([(query, "")])
    return (
        table.Panel()
        .title(title)
        .description(tells)
        .datasource(SOURCE)
        .span(WIDTH)
        .height(HEIGHT)
        .with_target(target.instant().format(PromQueryFormat.TABLE))
    )


def page(uid: str, title: str, tells: str) -> dashboard.Dashboard:
    """A dashboard without panels yet; which Prometheus it asks is chosen at its top."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(tells)
        .tags(["shardyard"])
        .refresh("10s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Something to choose at the top, from what Prometheus knows now."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _targets(queries: Sequence[Query]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + number))
        for number, (expr, legend) in enumerate(queries)
    ]
