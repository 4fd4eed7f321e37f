"""All sections of a report, in order. Pure."""

from __future__ import annotations

from results.report.facts import Report, instant
from results.report.method import fingerprints, host, method, verifying
from results.report.page import ReportPage
from results.report.results import comparison, distributions, failures, medians
from results.report.summary import facts_of, summary


def make_page(report: Report) -> ReportPage:
    """The report, before it is HTML or Markdown."""
    sections = (
        summary(report),
        medians(report),
        comparison(report),
        distributions(report),
        failures(report),
        host(report),
        method(report),
        fingerprints(report),
        verifying(report),
    )
    return ReportPage(
        title=report.title,
        kicker="Benchmark report",
        facts=facts_of(report),
        sections=[section for section in sections if section is not None],
        foot=[f"Written {instant(report.written)} by sark-node {report.version} from signed raw samples."],
    )
