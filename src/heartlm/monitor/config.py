"""Settings of a monitor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heartlm.errors import HeartlmError, require
from heartlm.monitor.connection import is_loopback, read_page_token

_BROKER = ("mqtt", "nats")
# Settings that are only used with one of the others.
_NEEDS = {
    **dict.fromkeys(("topic", "alarm_topic"), ("mqtt",)),
    **dict.fromkeys(("client_id", "user", "client_certificate"), _BROKER),
    **dict.fromkeys(("webhook_header", "fhir"), ("webhook",)),
    "ca": (*_BROKER, "webhook"),
    "password_file": ("user",),
    "client_key": ("client_certificate",),
    "tls_key": ("tls_certificate",),
    "credentials": ("nats",),
}


@dataclass(frozen=True)
class MonitorConfig:
    """Settings of a monitor, the options of `heartlm monitor`.

    Attributes:
        replay: folder of recordings to replay as streams.
        streams: number of replayed streams, by default one per recording; with more, recordings are used again.
        speed: replay speed: seconds of signal per second.
        lines: read messages from standard input, one per line, and stop at its end.
        mqtt: MQTT broker, as host, host:port or, with TLS, mqtts://host; messages come from --topic, alarms go to
            --alarm-topic.
        topic: MQTT topic filter of the messages; what its wildcards + and # match is the name of a stream.
        alarm_topic: MQTT topic under which the alarms of a stream have the topic ALARM_TOPIC/NAME.
        lsl: read the streams of type ECG in the Lab Streaming Layer.
        nats: NATS broker with JetStream, as host, host:port or, with TLS, tls://host; monitors with the same broker
            share its streams and take over the streams of a monitor that fails.
        client_id: name of this monitor at the broker, by default made from the host name and process id.
        user: user at the broker; the password comes from --password-file or the environment variable HEARTLM_PASSWORD.
        password_file: file with the password.
        credentials: credentials file of a NATS user.
        ca: certificates of the authorities that broker and webhook are checked against, PEM; by default those of the
            system. A broker without a scheme in its address is then used with TLS.
        client_certificate: certificate of this monitor for the broker, PEM.
        client_key: key of this certificate, PEM, unless the same file contains it.
        out: folder for the journal, the alarm log and a strip of each alarm; with the same folder, a restarted monitor
            continues where it stopped.
        max_streams: streams that are watched at the same time; messages of further ones are refused and counted.
        forget_h: hours without a message after which a stream is forgotten.
        rules: YAML file of alarm rules, or second-opinion.
        webhook: URL to which each alarm is posted as JSON.
        webhook_header: file with a header that authorises the posts, such as Authorization: Bearer TOKEN; by default
            the environment variable HEARTLM_WEBHOOK_HEADER.
        fhir: post alarms as FHIR Observations.
        page: serve the web page.
        open: open the page in a browser.
        host: address of the page; any address except loopback needs a certificate and a token.
        port: port of the page; 0 selects a free one.
        tls_certificate: certificate of the page, PEM.
        tls_key: key of the certificate, PEM.
        token: file with the token that requests to the page must contain.
        pseudonyms: show hashes instead of stream names.
        beats: causal beat model: a shipped model or a run folder.
    """

    replay: Path | None = None
    streams: int | None = None
    speed: float = 1.0
    lines: bool = False
    mqtt: str | None = None
    topic: str = "heartlm/ecg/#"
    alarm_topic: str = "heartlm/alarms"
    lsl: bool = False
    nats: str | None = None
    client_id: str | None = None
    user: str | None = None
    password_file: Path | None = None
    credentials: Path | None = None
    ca: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    out: Path | None = None
    max_streams: int = 5_000
    forget_h: float = 12.0
    rules: Path | None = None
    webhook: str | None = None
    webhook_header: Path | None = None
    fhir: bool = False
    page: bool = True
    open: bool = False
    host: str = "127.0.0.1"
    port: int = 8765
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    token: Path | None = None
    pseudonyms: bool = False
    beats: Path = Path("beats-causal")


def read_token(config: MonitorConfig) -> str | None:
    """Check the settings, and return the token of the page.

    Raises:
        HeartlmError: settings contradict each other, or the page would be open to other machines.
    """
    local_source = config.replay or config.lines or config.mqtt or config.lsl
    if not (local_source or config.nats):
        raise HeartlmError("nothing to watch: give --replay FOLDER, --lines, --mqtt HOST, --lsl or --nats HOST")
    if config.nats and (local_source or config.out):
        raise HeartlmError("nats: the broker stores streams and state: give neither another source nor --out")
    for name, others in _NEEDS.items():
        is_given = getattr(config, name) != getattr(MonitorConfig, name)
        if is_given and not any(getattr(config, each) for each in others):
            raise HeartlmError(f"{name}: needs --{' or --'.join(others).replace('_', '-')}")
    require(config, lambda number: number >= 1, "at least 1", "streams", "max_streams")
    require(config, lambda hours: 0 < hours <= 8760, "above 0 and at most 8760", "forget_h")
    require(config, lambda speed: 0 < speed <= 1000, "above 0 and at most 1000", "speed")
    require(config, lambda port: 0 <= port <= 65535, "0 to 65535", "port")
    if config.replay is not None and not config.replay.exists():
        raise HeartlmError(f"replay: {config.replay} found, a folder of recordings expected")
    if not config.page:
        return None
    if not is_loopback(config.host) and not (config.tls_certificate and config.tls_key and config.token):
        raise HeartlmError(
            f"host: {config.host} found: others can reach it, so --tls-certificate, --tls-key and --token are needed"
        )
    return None if config.token is None else read_page_token(config.token)
