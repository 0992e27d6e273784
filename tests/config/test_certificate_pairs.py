"""The client certificate of a listener that dials is among the pairs that are watched and replaced."""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.config.certificate_pairs import Pair, pairs_in, with_pairs

PLACE = ("listeners", "hub", "dial", "tls")


def pem(name: str) -> model.PEMFile:
    return model.PEMFile(f"/etc/{name}", name.encode())


def listener(name: str, tls: model.DialTLS) -> model.ListenerConfig:
    dial = model.Dial(tunnel=name, urls=("https://hub.example:443",), tls=tls)
    return model.ListenerConfig(name=name, dial=dial, protocols=(model.HTTPProtocol.HTTP1,))


CONFIG = model.Config(
    listeners=(
        listener("hub", model.DialTLS(ca=pem("ca.crt"), certificate=pem("edge.crt"), key=pem("edge.key"))),
        listener("by-token", model.DialTLS(ca=pem("ca.crt"))),
        model.ListenerConfig(name="local", bind=model.TCPBind("127.0.0.1", 1), protocols=(model.HTTPProtocol.HTTP1,)),
    )
)


def test_its_pair_is_found() -> None:
    assert pairs_in(CONFIG) == {PLACE: Pair(pem("edge.crt"), pem("edge.key"))}


def test_its_pair_is_replaced_and_nothing_else() -> None:
    new = Pair(pem("new.crt"), pem("new.key"))
    changed = with_pairs(CONFIG, {PLACE: new})
    assert pairs_in(changed) == {PLACE: new}
    assert changed.listeners[0].dial is not None
    assert changed.listeners[0].dial.tls.ca == pem("ca.crt")
    assert all(now is before for now, before in zip(changed.listeners[1:], CONFIG.listeners[1:], strict=True))
    assert with_pairs(CONFIG, {}) is CONFIG
