"""Exports the verdict as JUnit XML: one failed test case per reason, or one passed test case.

Sources: the XML Schemas of Jenkins' xUnit plug-in (junit-10.xsd) and of Apache Ant (windyroad/JUnit-Schema). The file
conforms to both schemas.
"""

from typing import TextIO
from xml.etree import ElementTree as ET

from harness.core.shown.escapes import visible
from harness.core.units import NS_PER_S
from harness.results.answer import answer_of
from harness.results.export.samples import span_ns
from harness.results.numbers import numbers
from harness.results.run_files import RunFiles


def write(run: RunFiles, out: TextIO) -> None:
    suites = _suites(run)
    ET.indent(suites)
    out.write('<?xml version="1.0" encoding="UTF-8"?>\n')
    out.write(f"{ET.tostring(suites, encoding='unicode')}\n")


def _suites(run: RunFiles) -> ET.Element:
    result = run.result
    name = visible(f"{result['scenario']} {result['backend']} {result['model']}")
    reasons = result["reasons"]
    machine = (result.get("environment") or {}).get("machine") or {}
    began_ns, ended_ns = span_ns(run)
    suites = ET.Element("testsuites")
    suite = ET.SubElement(
        suites,
        "testsuite",
        {
            "name": name,
            "package": "harness",
            "id": "0",
            "tests": str(max(1, len(reasons))),
            "failures": str(len(reasons)),
            "errors": "0",
            "skipped": "0",
            "time": f"{max(0, ended_ns - began_ns) / NS_PER_S:.3f}",
            # The time zone is left out, because the schemas forbid a time zone. The time is always UTC.
            "timestamp": str(result["started"])[:19],
            "hostname": visible(str(machine.get("host") or "unknown")),
        },
    )
    properties = ET.SubElement(suite, "properties")
    facts = {"run": run.name, "verdict": result["verdict"], "doubts": run.codes("doubts")}
    found = {f"{name} [{n.unit}]": f"{n.value:.17g}" for name, n in numbers(result).items()}
    for key, value in {**facts, **found}.items():
        ET.SubElement(properties, "property", {"name": visible(key), "value": visible(value)})
    for reason in reasons:
        case = _case(suite, visible(reason["code"]))
        text = visible(reason["text"])
        failure = ET.SubElement(case, "failure", {"type": result["verdict"], "message": text})
        failure.text = text
    if not reasons:
        _case(suite, result["verdict"])
    answer = answer_of(result)._asdict()
    lines = (f"{key.replace('_', ' ')}: {value}" for key, value in answer.items() if value)
    ET.SubElement(suite, "system-out").text = visible("\n".join(lines))
    ET.SubElement(suite, "system-err")
    return suites


def _case(suite: ET.Element, name: str) -> ET.Element:
    named = {"name": name, "classname": suite.attrib["name"], "time": suite.attrib["time"]}
    return ET.SubElement(suite, "testcase", named)
