"""Saves a run after each step: its folder, its row in runs.sqlite and its report."""

import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import cast

from harness.core import files
from harness.core.codes import Reason
from harness.core.config.run_config import to_plain
from harness.core.console import say, show
from harness.core.formats.strict_yaml import write_yaml
from harness.core.shown.private import hidden
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunInvalid, one_line
from harness.loadgen.plan import Loaded, LoadPlan
from harness.results import database, records, resolved, run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.findings import Findings
from harness.results.outcome import Finished
from harness.results.records import Samples
from harness.results.result_json import result
from harness.results.run_folder import ResultFolder
from harness.results.schema.result import Result
from harness.results.seal import digests, signature
from harness.run.supervisor.metrics.exporter import Exporter


class RunKeeper:
    """Saves `findings` after every step. A folder that cannot be written makes the run INVALID."""

    def __init__(self, folder: ResultFolder, findings: Findings, exporter: Exporter | None) -> None:
        """exporter: writes metrics.prom; None if that file is already written."""
        self.folder = folder
        self.findings = findings
        self._exporter = exporter
        self._folder_now = folder.path

    @property
    def has_measured(self) -> bool:
        return self.findings.performance is not None or self.findings.accuracy is not None

    def save(self, content: Result | None = None) -> None:
        """Saves the run so far. content: the content of result.json; None: derived from the findings."""
        records.write_findings(self.folder.path, self.findings)
        files.write_json(self.folder.path / run_folder.RESULT, content or self._result())

    def write_resolved(self, plan: LoadPlan, loaded: Loaded) -> None:
        """Writes the run with every resolved value to config.yaml and environment.json."""
        findings, folder = self.findings, self.folder.path
        config = resolved.config(findings.resolved, plan, loaded)
        write_yaml(folder / run_folder.CONFIG, to_plain(config))
        environment = resolved.environment(findings.environment, plan, loaded, findings.model)
        files.write_json(folder / run_folder.ENVIRONMENT, hidden(environment))

    def _result(self) -> Result:
        """Returns the content of result.json without private names, because strangers may read it."""
        return cast("Result", hidden(result(self.findings)))

    def keep(self, evidence: Evidence, outdir: Path) -> None:
        """Saves one finished LoadGen run. If saving fails, the printed table still shows the run."""
        setattr(self.findings, evidence.plan.role, evidence)
        try:
            records.write(outdir, evidence, self.findings.started)
            self.save()
        except OSError as e:
            self.not_saved(e)
        if self._exporter is not None:
            self._exporter.end()

    def keep_samples(self, samples: Samples) -> None:
        self.findings.host, self.findings.power, self.findings.server_metrics = samples
        try:
            records.write_samples(self.folder.path, samples)
            self.save()
        except OSError as e:
            self.not_saved(e)

    def _write_metrics(self) -> None:
        """Writes metrics.prom. A failure loses no numbers, because other files also contain them."""
        if self._exporter is None:
            return
        path = self.folder.path / run_folder.METRICS
        try:
            self._exporter.write(self.folder.path)
        except OSError as e:
            with suppress(OSError):
                path.unlink()  # the incomplete file is removed, because it would look complete
            say(f"{path} was not written ({e.strerror}): the run's numbers are in its other files")

    def not_saved(self, error: OSError) -> Reason:
        """Adds the reason `not-saved` to the findings, and returns this reason."""
        text = f"{self.folder.path} cannot be written ({error.strerror}): pass a different --out"
        self.findings.unsaved = reason = Reason("not-saved", text)
        return reason

    def give_up(self, error: HarnessError) -> None:
        """Ends a run before its first query.

        Removes the folder if the user made a mistake. Keeps the folder, with the traceback, if a plug-in failed.
        """
        if isinstance(error, ConfigError):
            shutil.rmtree(self.folder.path, ignore_errors=True)
        else:
            self.findings.stopped = Reason("did-not-start", str(error))
            self.try_save(seal=True)

    def try_save(self, *, seal: bool = False) -> None:
        """Saves the run before an error is shown. Never raises an error, because a new error would hide the error to be
        shown.
        """
        try:
            self.save()
            if seal:
                digests.write(self.folder.path)
        except OSError as e:
            say(self.not_saved(e).text)

    def conclude(self, status: int) -> Finished:
        """Writes the result, seals and renames the folder, adds the row to runs.sqlite, and signs the seal."""
        folder = self.folder.path
        host = (self.findings.environment.get("machine") or {}).get("host")
        if host and self.findings.performance is not None:
            self.findings.ceiling_per_s = database.null_ceiling_per_s(
                folder.parent, self.findings.config.scenario, host
            )
        content = self._result()
        if self._exporter is not None:
            self._exporter.conclude(content)
        with suppress(OSError):
            (folder / run_folder.ENDPOINT).unlink(missing_ok=True)
        try:
            self.save(content)
            self._write_metrics()
            if not status and self.findings.unsaved is None:
                self._folder_now = folder = self.folder.finish()
            else:
                digests.write(folder)
            database.add(folder.parent, folder.name, content)
        except sqlite3.Error as e:
            path = database.path_in(folder.parent)
            say(f"{path}: the run was not added ({e}), so `runs` does not list {folder.name}")
        except OSError as e:
            self.not_saved(e)
            content = self._result()
            # The result is saved again, because the first one may say VALID.
            with suppress(OSError):
                self.save(content)
                digests.write(folder)
        if self.findings.config.sign is not None:
            say(signature.sign(folder, self.findings.config.sign))
        if self.findings.unsaved is not None:
            say(self.findings.unsaved.text)
        if not status and content["verdict"] != "VALID":
            status = RunInvalid.exit_status
        return Finished(status, folder, content)

    def report(self, *, as_json: bool) -> None:
        """Makes report.html as the last step of a run. Prints an error as one line."""
        findings = self.findings
        if findings.config.no_report or findings.unsaved is not None or not self.has_measured:
            return
        try:
            from harness.results.pages.report import report_at_end

            text = str(report_at_end(self._folder_now, findings))
        except PluginUnavailable as e:
            text = f"none: {e}"
        except Exception as e:  # noqa: BLE001 - the run is over, and does not need the page
            kind = "" if isinstance(e, HarnessError) else f"{type(e).__name__}: "
            say(f"no report: {kind}{one_line(e)}: `report {self._folder_now}` makes one later")
            return
        if not as_json:
            show(f"{'report':<12}{text}")
