"""A run as JUnit XML, for CI systems: a suite a host, a case a check and subject."""

import re
from xml.etree import ElementTree as ET

from fabricpulse.audit.compare.tested import fleet_outcomes
from fabricpulse.audit.model import Run, Status
from fabricpulse.audit.registry import checks_of_fleet

# XML 1.0 has no way to write these.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(run: Run) -> str:
    """The document. What was unknown is an error, what does not apply is skipped; what the hosts do not tell
    themselves, of values and of paths, are cases of a suite of its own, with a case of each host that passed, and one
    that is skipped of each check that was not made."""
    reports, findings = run.hosts, run.findings
    root = ET.Element("testsuites", name="fabricpulse audit")
    for report in reports:
        cases = [(r.check, r.category, r.outcome) for r in report.results]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_text(report.host),
            tests=str(len(cases)),
            failures=str(sum(outcome.status is Status.FAILED for *_, outcome in cases)),
            errors=str(sum(outcome.status is Status.UNKNOWN for *_, outcome in cases)),
            skipped=str(sum(outcome.status is Status.NOT_APPLICABLE for *_, outcome in cases)),
            time=f"{report.duration_s:.3f}",
        )
        for check, category, outcome in cases:
            name = f"{check} {outcome.subject}".strip()
            case = ET.SubElement(
                suite, "testcase", name=_text(name), classname=f"{category}.{_text(report.host)}"
            )
            tag = {Status.FAILED: "failure", Status.UNKNOWN: "error", Status.NOT_APPLICABLE: "skipped"}.get(
                outcome.status
            )
            if tag:
                node = ET.SubElement(case, tag, message=_text(outcome.summary))
                node.text = _text("\n".join(f"{key}: {value}" for key, value in outcome.evidence.items()))
    own = {
        (report.host, result.check, result.outcome.subject)
        for report in reports
        for result in report.results
        if result.outcome.status is Status.FAILED
    }
    fleet = [f for f in findings if (f.host, f.check, f.subject) not in own]
    outcomes = fleet_outcomes(run)
    passed = [
        (check, host)
        for check, by_host in outcomes.items()
        for host, status in by_host.items()
        if status is Status.PASSED
    ]
    made = {result.check for report in reports for result in report.results} | set(outcomes)
    skipped = [check.id for check in checks_of_fleet() if check.id not in made]
    if len(run.asked) > 1 or fleet:
        suite = ET.SubElement(
            root,
            "testsuite",
            name="fleet",
            tests=str(len(fleet) + len(passed) + len(skipped)),
            failures=str(len(fleet)),
            skipped=str(len(skipped)),
        )
        for check, host in passed:
            ET.SubElement(suite, "testcase", name=_text(f"{check} {host}"), classname="fleet")
        for check in skipped:
            case = ET.SubElement(suite, "testcase", name=check, classname="fleet")
            ET.SubElement(case, "skipped", message="not made in this run")
        for finding in fleet:
            name = " ".join(filter(None, (finding.check, finding.host, finding.subject)))
            case = ET.SubElement(suite, "testcase", name=_text(name), classname="fleet")
            node = ET.SubElement(case, "failure", message=_text(finding.summary))
            node.text = _text("\n".join(f"{key}: {value}" for key, value in finding.evidence.items()))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NOT_XML.sub("�", text)
