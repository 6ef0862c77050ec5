"""A run as JUnit XML, for CI systems: a suite a host, a case a check and subject."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from fabricpulse.audit.model import Finding, HostReport, Status

# XML 1.0 has no way to write these.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(reports: Sequence[HostReport], findings: Sequence[Finding]) -> str:
    """The document. What was unknown is an error, what does not apply is skipped; what the hosts do not tell
    themselves, of values and of paths, are cases of a suite of its own."""
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
    if fleet:
        suite = ET.SubElement(
            root, "testsuite", name="fleet", tests=str(len(fleet)), failures=str(len(fleet))
        )
        for finding in fleet:
            name = " ".join(filter(None, (finding.check, finding.host, finding.subject)))
            case = ET.SubElement(suite, "testcase", name=_text(name), classname="fleet")
            node = ET.SubElement(case, "failure", message=_text(finding.summary))
            node.text = _text("\n".join(f"{key}: {value}" for key, value in finding.evidence.items()))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _text(text: str) -> str:
    return _NOT_XML.sub("�", text)
