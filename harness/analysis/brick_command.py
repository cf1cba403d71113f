"""The command line of `bricks`."""

from harness.errors import ConfigError
from harness.options import Parser, user_path

ABOUT = (
    "Cut models into short sequences of layers, run each different one once, without the models' "
    "weights, and put the models' times together again from these bricks."
)


def bricks(arguments: list[str]) -> int:
    parser = _parser()
    given = {k: v for k, v in vars(parser.parse_args(arguments)).items() if v is not None}
    folder, as_json = given.pop("from_folder", None), given.pop("json", False)
    from harness.analysis.bricks import Request, execute, show_again

    if folder is not None:
        if given.get("models"):
            raise ConfigError("--from shows what a folder holds: name no models beside it")
        return show_again(user_path(folder), as_json=as_json)
    problems = [
        f"--{name.replace('_', '-')} {given[name]}: it must be at least 1"
        for name in ("most_layers", "batch", "threads", "rounds", "synthetic_layers")
        if given.get(name, 1) < 1
    ]
    if given.get("publish_order") and "publish" not in given:
        problems.append("--publish-order is for --publish: add it, or drop this")
    if not given["models"]:
        problems.append("bricks needs models: names of `python -m harness list`, or .onnx files")
    if problems:
        raise ConfigError("\n".join(problems))
    for name in ("database", "out", "publish", "synthetic"):
        if name in given:
            given[name] = user_path(given[name])
    given["sizes"] = dict(_size(text) for text in given.pop("size", []))
    given["is_run"] = not given.pop("structure", False)
    return execute(Request(**given, as_json=as_json))


def _parser() -> Parser:
    parser = Parser(prog="python -m harness bricks", description=ABOUT)
    add = parser.add_argument
    add(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a name of `list`, an .onnx file, or a folder of bricks that --publish wrote",
    )
    add(
        *("-G", "--most-layers"),
        type=int,
        metavar="N",
        help="layers of a brick at most (default 8)",
    )
    add("--batch", type=int, metavar="N", help="samples of a run (default 1)")
    add(
        "--size",
        action="append",
        metavar="NAME=N",
        help="of another symbolic dimension of the inputs (repeatable)",
    )
    add("--threads", type=int, metavar="N", help="of ONNX Runtime (default 1)")
    add(
        "--rounds",
        type=int,
        metavar="N",
        help="turns of a model and its bricks, two timed runs each (default 8)",
    )
    add(
        "--structure",
        action="store_true",
        default=None,
        help="run nothing: only look at the graphs",
    )
    add("--database", metavar="FILE", help="what was run already (default results/bricks.sqlite)")
    add("--out", metavar="DIR", help="the result folder, which must not exist yet")
    add(
        "--from",
        dest="from_folder",
        metavar="DIR",
        help="all tables again, from a result folder alone",
    )
    add(
        "--publish",
        metavar="DIR",
        help="the bricks as ONNX files, without any weight of the models",
    )
    add(
        "--publish-order",
        action="store_true",
        default=None,
        help="of --publish: also how each model is put together, so that others get its time",
    )
    add("--synthetic", metavar="FILE", help="a made-up model with the operators of the one named")
    add(
        "--synthetic-layers",
        type=int,
        metavar="N",
        help="of --synthetic (default: as many as the model has)",
    )
    add(
        "--json",
        action="store_true",
        default=None,
        help="print the tables' numbers as JSON instead",
    )
    return parser


def _size(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not number.isdigit() or int(number) < 1:
        raise ConfigError(f"--size {text}: write NAME=N, e.g. sequence=128")
    return name, int(number)
