"""Single faults in a good PTDaemon session, in the form of mutations.py."""

from harness.loadgen.logs import SUMMARY
from tests.builders.submission.power import (
    CLIENT_JSON,
    PLACE,
    PTD_LOG,
    SERVER_JSON,
    SESSION,
    both,
    drop_key,
    hashed_anew,
    lines,
    logged,
    powered,
    ptd,
    put,
    said,
    text,
)
from tests.builders.submission.trees import CLOSED, Mutation, write

SPL = f"{PLACE}/run_1/spl.txt"
RANGING_SPL = f"{PLACE}/ranging/spl.txt"
UNCERTAIN = "WARNING: Uncertainty 1.53%, which is above 1.00% limit for the last sample!"
POWER: dict[str, tuple[str, Mutation]] = {
    "power: no session file": ("power-files", powered(lambda r: (r / CLIENT_JSON).unlink())),
    "power: ptd_out beside": (
        "stray-file",
        powered(lambda r: write(r / PLACE / "run_1/ptd_out.txt", "x")),
    ),
    "power: no analyser table": (
        "power-files",
        powered(lambda r: (r / CLOSED / "Server/analyzer_table.md").unlink()),
    ),
    "power: empty settings": (
        "empty-file",
        powered(lambda r: write(r / CLOSED / "Server/power_settings.md", "")),
    ),
    "power: no field": ("power-session", powered(said(CLIENT_JSON, drop_key("modules")))),
    "power: no phases": ("power-session", powered(both(drop_key("phases")))),
    "power: no JSON": ("power-session", powered(lambda r: write(r / CLIENT_JSON, "{"))),
    "power: a list": ("power-session", powered(lambda r: write(r / SERVER_JSON, "[]"))),
    "power: another client": (
        "power-session",
        powered(said(CLIENT_JSON, put("uuid/client", "2d" * 16))),
    ),
    "power: another server": (
        "power-session",
        powered(said(SERVER_JSON, put("uuid/server", "2d" * 16))),
    ),
    "power: no uuid": ("power-session", powered(both(put("uuid/client", "me")))),
    "power: another session": (
        "power-session",
        powered(said(SERVER_JSON, put("session_name", "other"))),
    ),
    "power: debug": ("power-session", powered(said(SERVER_JSON, lambda c: c.update(debug=True)))),
    "power: a message fewer": (
        "power-session",
        powered(said(SERVER_JSON, lambda c: c["messages"].pop())),
    ),
    "power: another reply": (
        "power-session",
        powered(said(SERVER_JSON, put("messages/2/reply", "OK"))),
    ),
    "power: another command": (
        "power-session",
        powered(said(CLIENT_JSON, put("messages/2/cmd", "new"))),
    ),
    "power: no messages": ("power-session", powered(both(put("messages", [])))),
    "power: another version": (
        "power-session",
        powered(both(put("messages/0/reply", "mlcommons/power server v2"))),
    ),
    "power: no version": ("power-session", powered(both(put("messages/0/cmd", "hello")))),
    "power: client changed": (
        "power-sources",
        powered(said(CLIENT_JSON, put("sources/client.py", "0" * 40))),
    ),
    "power: server changed": (
        "power-sources",
        powered(said(SERVER_JSON, lambda c: c["sources"].update({"lib/server.py": "0" * 40}))),
    ),
    "power: a source more": (
        "power-sources",
        powered(said(SERVER_JSON, lambda c: c["sources"].update({"x.py": "0" * 40}))),
    ),
    "power: sources gone": ("power-sources", powered(both(put("sources", {})))),
    "power: clocks apart": (
        "power-clock",
        powered(said(SERVER_JSON, put("phases/testing/2/0", lambda x: x + 0.9))),
    ),
    "power: a step fewer": (
        "power-clock",
        powered(said(SERVER_JSON, lambda c: c["phases"]["ranging"].pop())),
    ),
    "power: phases of text": ("power-clock", powered(both(put("phases/testing", "x")))),
    "power: run outside its phase": (
        "power-clock",
        powered(both(put("phases/testing/1/0", lambda x: x + 60))),
    ),
    "power: ranging outside its phase": (
        "power-clock",
        powered(both(put("phases/ranging/2/0", lambda x: x - 60))),
    ),
    "power: log changed": (
        "power-hash",
        powered(lambda r: write(r / PLACE / "power/server.log", "x")),
    ),
    "power: spl changed": ("power-hash", powered(text(SPL, "49.5", "39.5"))),
    "power: LoadGen's log changed": (
        "power-hash",
        powered(lines(f"{PLACE}/ranging/{SUMMARY}", lambda x: [*x, " "])),
    ),
    "power: a file not hashed": (
        "power-hash",
        powered(both(lambda c: c["results"].pop("run_1/spl.txt"))),
    ),
    "power: sides disagree": (
        "power-hash",
        powered(said(CLIENT_JSON, lambda c: c["results"].update({"run_1/spl.txt": "0" * 40}))),
    ),
    "power: results of text": ("power-hash", powered(both(put("results", "none")))),
    "power: PTDaemon's version": (
        "power-meter",
        powered(ptd(1, reply="YokogawaWT310E,version=1.9.2-0")),
    ),
    "power: no version of PTDaemon": ("power-meter", powered(ptd(1, reply="YokogawaWT310E"))),
    "power: a stand-in": ("power-meter", powered(ptd(1, reply="StandIn,version=1.11.1-0"))),
    "power: nobody identified": ("power-meter", powered(ptd(1, cmd="Who"))),
    "power: no range set": ("power-meter", powered(ptd(8, reply="Range A unchanged"))),
    "power: range V not set": ("power-meter", powered(ptd(7, reply="Error"))),
    "power: Go refused": ("power-meter", powered(ptd(9, reply="Error: busy"))),
    "power: Stop refused": ("power-meter", powered(ptd(6, reply="Error: no measurement to stop"))),
    "power: third Stop stops": (
        "power-meter",
        powered(ptd(11, reply="Stopping untimed measurement")),
    ),
    "power: amps not set back": (
        "power-meter",
        powered(ptd(13, cmd="SR,A,0.33"), ptd(14, cmd="SR,A,0.33")),
    ),
    "power: volts not set back": ("power-meter", powered(ptd(12, cmd="SR,V,230.0"))),
    "power: ranges were fixed": ("power-meter", powered(ptd(2, reply="Ranges,0,1.0,0,300.0"))),
    "power: three SR,A": (
        "power-meter",
        powered(said(SERVER_JSON, lambda c: c["ptd_messages"].pop())),
    ),
    "power: no messages of PTDaemon": (
        "power-meter",
        powered(said(SERVER_JSON, drop_key("ptd_messages"))),
    ),
    "power: device type": (
        "power-meter",
        powered(said(SERVER_JSON, put("ptd_config/0/device_type", 0))),
    ),
    "power: one channel of two": (
        "power-meter",
        powered(said(SERVER_JSON, put("ptd_config/0/device_type", 77))),
    ),
    "power: no configuration": ("power-meter", powered(said(SERVER_JSON, put("ptd_config", None)))),
    "power: empty ptd log": ("power-log", hashed_anew(lambda r: write(r / PTD_LOG, "x\n"))),
    "power: no ranging in the log": (
        "power-log",
        hashed_anew(text(PTD_LOG, "_ranging'", "_other'")),
    ),
    "power: ranging without end": ("power-log", hashed_anew(text(PTD_LOG, "Completed", "Began"))),
    "power: uncertainty not watched": (
        "power-log",
        hashed_anew(text(PTD_LOG, "is activated", "is off")),
    ),
    "power: uncertainty watched late": (
        "power-log",
        hashed_anew(
            lines(PTD_LOG, lambda x: x[:1] + x[2:]),
            logged(0, "Uncertainty checking for YokogawaWT310E is activated"),
        ),
    ),
    "power: error in the load": (
        "power-log",
        hashed_anew(logged(300, "ERROR: Bad watts reading nan")),
    ),
    "power: error after a harmless one": (
        "power-log",
        hashed_anew(logged(300, "ERROR: USB."), logged(301, "ERROR: Bad watts reading nan")),
    ),
    "power: error without time": (
        "power-log",
        hashed_anew(lines(PTD_LOG, lambda x: [*x, "ERROR: y"])),
    ),
    "power: warning without time": (
        "power-log",
        hashed_anew(lines(PTD_LOG, lambda x: [*x, "WARNING: y"])),
    ),
    "power: uncertain sample": ("power-log", hashed_anew(logged(300, UNCERTAIN))),
    "power: no samples": ("power-samples", hashed_anew(lambda r: write(r / SPL, "x\n"))),
    "power: no ranging samples": (
        "power-samples",
        hashed_anew(lambda r: write(r / RANGING_SPL, "x\n")),
    ),
    "power: a gap": ("power-samples", hashed_anew(lines(SPL, lambda x: x[:100] + x[104:]))),
    "power: ends early": ("power-samples", hashed_anew(lines(SPL, lambda x: x[:500]))),
    "power: samples of another session": (
        "power-samples",
        hashed_anew(text(SPL, SESSION, "other")),
    ),
    "power: ranging's samples": (
        "power-samples",
        hashed_anew(lambda r: write(r / SPL, (r / RANGING_SPL).read_text())),
    ),
    "power: not in watts": ("power-samples", hashed_anew(text(SPL, "Watts", "mWatts"))),
    "power: no number": ("power-samples", hashed_anew(text(SPL, "49.500000", "much"))),
    "power: no power factor": ("power-samples", hashed_anew(text(SPL, "0.900000", "x"))),
    "power: a foreign line": ("power-samples", hashed_anew(lines(SPL, lambda x: [*x, "Timeless"]))),
    "power: dead samples": (
        "power-samples",
        hashed_anew(lines(SPL, lambda x: [*x[:99], x[99].replace("49.5", "0.0"), *x[100:]])),
    ),
    "power: less than in ranging": (
        "power-samples",
        hashed_anew(text(SPL, "49.500000", "47.400000")),
    ),
}
