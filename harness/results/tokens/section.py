"""Tells the tokens of a run with a language model on a server. Pure."""

from harness.core.units import NS_PER_S
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Tokens


def section(run: Evidence) -> Tokens | None:
    """The section of result.json; None where replies tell of no tokens, or the run did not end by itself."""
    client = run.ended.get("client") if run.ended is not None else None
    told = client.get("tokens") if client is not None else None
    if told is None:
        return None
    output, answers = told["output"], told["answers"]
    seconds = _seconds(run)
    return {
        "answers": answers,
        "input": told["input"],
        "output": output,
        "source": " and ".join(sorted(told["sources"])) if output is not None else "",
        "output_per_s": output / seconds if output is not None and seconds else None,
        "output_mean": output / answers if output is not None and answers else None,
        "cached": told["cached"],
        "one_token_answers": told["one_token_answers"],
        "finish_reasons": dict(sorted(told["finish_reasons"].items())),
    }


def _seconds(run: Evidence) -> float:
    """From the first scheduled query to the last answer."""
    done = run.done
    if done is None or not len(done):
        return 0.0
    begin, end = done.columns["scheduled_ns"].min(), done.columns["completed_ns"].max()
    return float(end - begin) / NS_PER_S
