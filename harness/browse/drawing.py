"""Prepares plots for the templates."""

import threading
from collections.abc import Sequence
from typing import Any

from harness.errors import PluginUnavailable
from harness.results.pages import page as pages
from harness.results.pages.page import Article, Figure

HEAVY = threading.Lock()
"""Held while a comparison, a run's plots or a study's page is computed. Only one page may hold the lock at a time,
because a run on this machine needs the cores.
"""


def plotted(articles: Sequence[Article]) -> dict[str, Any]:
    """Returns the template's values for a page with plots: the lines of each article, and the data of all plots.
    Without plotly, the page shows only the tables.
    """
    try:
        script: str | None = pages.plotly_script()[1]
    except PluginUnavailable:
        script = None
    made: list[list[str]] = []
    plots: list[Figure] = []
    for article in articles:
        drawn = article if script else article._replace(figures=())
        made.append(list(pages.article_html(drawn, len(plots))))
        plots += drawn.figures
    return {
        "articles": made,
        "plots": any(article.figures for article in articles),
        "figures": pages.figures_html(plots),
        "script": script,
    }
