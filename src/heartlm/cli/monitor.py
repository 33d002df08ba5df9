"""`heartlm monitor`: watch live ECG streams, and raise alarms on a page, in files and over the network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heartlm.cli.options import parse
from heartlm.monitor.config import MonitorConfig, read_token


@dataclass(frozen=True)
class MonitorOptions(MonitorConfig):
    """Options of `heartlm monitor`.

    Attributes:
        print_alarms: print each alarm as text, as a JSON line, or not at all.
    """

    print_alarms: Literal["text", "json", "none"] = "text"


def run(arguments: Sequence[str]) -> int:
    """Watch live ECG streams and raise alarms within seconds: on a page, in files, by MQTT and webhooks.

    Examples:
        heartlm monitor --replay mitdb --streams 20
        heartlm monitor --mqtt broker.ward --user monitor --password-file password --ca ca.pem --out ward
        heartlm monitor --nats broker.ward:4222 --client-id a
        sensor | heartlm monitor --lines --webhook https://alarms.example/ecg
    """
    options = parse(MonitorOptions, arguments, "monitor", run)
    read_token(options)  # before torch is loaded
    from heartlm.monitor.service import watch

    listener = {"text": [_print_text], "json": [_print_json], "none": []}[options.print_alarms]
    return watch(options, listener)


def _print_text(entry: dict[str, Any]) -> None:
    if entry["strip"] is None and entry["acknowledged"] is None:
        time_s, event = (entry["raised_s"], "raised") if entry["stop_s"] is None else (entry["stop_s"], "ended")
        event += f", {entry['count']} times" if entry["count"] > 1 else ""
        print(f"{entry['stream']}  {time_s:,.0f} s  {entry['severity']}  {entry['kind']} {event}", flush=True)


def _print_json(entry: dict[str, Any]) -> None:
    print(json.dumps(entry), flush=True)
