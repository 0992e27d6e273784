"""`mcproxy import`: a configuration made from kubeconfigs, or from KubeGateway's or Karmada's objects."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, FAILED, OK, USAGE
from mcproxy.cli.progress import progress

if TYPE_CHECKING:
    from mcproxy.importing.fragment import Fragment, Note
    from mcproxy.importing.kubegateway.upstream_cluster import Options
    from mcproxy.importing.objects import Object
    from mcproxy.importing.output import Checked, Complete

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

INCOMPLETE = 3
"""Exit status where an object or context was left out altogether."""

_EXAMPLES = """\
examples:
  mcproxy import kubeconfig ~/.kube/config --output clusters.yaml
  kubectl get upstreamclusters -o yaml | mcproxy import upstreamcluster - --output mcproxy.yaml
  mcproxy import upstreamcluster --live --context gateway --output mcproxy.yaml
  mcproxy import resourceregistry --live --context karmada-apiserver --output fleet.yaml
"""
_KUBECONFIG = """\
The clusters refer to the kubeconfig, which keeps its secrets; with --secrets DIR they are copied instead, each into a
file of its own.

examples:
  mcproxy import kubeconfig ~/.kube/config
  mcproxy import kubeconfig admin.conf --context east --context west --secrets tls --output clusters.yaml
"""
_UPSTREAM_CLUSTER = """\
Certificates, keys and tokens of the objects become files, mode 0600, in --secrets DIR (default: a folder beside
--output). See docs/migrate-kubegateway.md.

examples:
  kubectl get upstreamclusters -o yaml > upstream.yaml
  mcproxy import upstreamcluster upstream.yaml --certificate gateway.crt gateway.key --output mcproxy.yaml
  mcproxy import upstreamcluster --live --context gateway --output mcproxy.yaml
"""
_RESOURCE_REGISTRY = """\
The files hold ResourceRegistry and Cluster objects, and the Secrets that the clusters refer to. See
docs/migrate-karmada.md.

examples:
  kubectl --context karmada-apiserver get resourceregistries,clusters -o yaml > karmada.yaml
  kubectl --context karmada-apiserver -n karmada-cluster get secrets -o yaml > secrets.yaml
  mcproxy import resourceregistry karmada.yaml secrets.yaml --output fleet.yaml
  mcproxy import resourceregistry --live --context karmada-apiserver --output fleet.yaml
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command with the commands below it."""
    parser = subparsers.add_parser(
        "import",
        help="make a configuration from kubeconfigs, KubeGateway's or Karmada's objects",
        description="Make a configuration from what other programs use. What cannot be carried over is said, one line "
        "each, on standard error and in comments of the output. Exit status: 0 done, 3 something was left out.",
        epilog=_EXAMPLES,
    )
    below = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    kubeconfig = _add(below, "kubeconfig", "clusters from every context of a kubeconfig", _KUBECONFIG)
    kubeconfig.add_argument("files", nargs=1, metavar="FILE", help="the kubeconfig")
    kubeconfig.add_argument("--context", metavar="NAME", action="append", help="only this context; may be repeated")
    upstream = _add(
        below, "upstreamcluster", "clusters, servers, policies and limits from KubeGateway", _UPSTREAM_CLUSTER
    )
    _add_sources(upstream)
    upstream.add_argument(
        "--bind", metavar="ADDRESS", default="0.0.0.0:6443", help="of the listener (default: %(default)s)"
    )
    upstream.add_argument(
        "--certificate",
        nargs=2,
        metavar=("FILE", "FILE"),
        help="chain and key, PEM, for clusters without a serving certificate: the gateway's own",
    )
    upstream.add_argument(
        "--client-ca", metavar="FILE", help="authorities, PEM, for clusters without clientCAData: the gateway's own"
    )
    inverted = upstream.add_mutually_exclusive_group()
    inverted.add_argument(
        "--as-written",
        action="store_true",
        help="carry inverted lists over as KubeGateway's documents have them: they exclude what they say. That is the "
        "default where no request gets another limit or other endpoints by it",
    )
    inverted.add_argument(
        "--as-run",
        action="store_true",
        help="carry inverted lists over as KubeGateway runs them: several inverted items, and an inverted group, match "
        "everything",
    )
    registry = _add(below, "resourceregistry", "clusters and an aggregate from Karmada", _RESOURCE_REGISTRY)
    _add_sources(registry)
    registry.add_argument(
        "--name", metavar="NAME", default="karmada", help="the name of the aggregate (default: %(default)s)"
    )


def _add(below: Subparsers, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    parser = below.add_parser(
        name,
        help=summary,
        description=f"Make {summary}. The output is read by mcproxy's own loader before it is given.",
        epilog=epilog,
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the configuration there, mode 0600 (default: standard output)"
    )
    parser.add_argument("--secrets", metavar="DIR", help="write certificates, keys and tokens there, mode 0600")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    return parser


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML or JSON; - is standard input")
    parser.add_argument(
        "--live", action="store_true", help="read the objects from a cluster instead (needs mcproxy[import])"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="of --live (default: as kubectl finds it)")
    parser.add_argument("--context", metavar="NAME", help="of --live (default: the current context)")


def run(args: argparse.Namespace) -> int:
    """Make and write it; 0 done, 3 something was left out, 78 what was read is wrong, 1 any other failure."""
    from mcproxy.config.problem import ConfigErrors
    from mcproxy.importing import output
    from mcproxy.importing.live import LiveError
    from mcproxy.importing.objects import UnusableError

    if wrong := _misused(args):
        _say(wrong)
        return USAGE
    try:
        with progress(f"importing {args.what}") as shown:
            fragments, left_out, complete = _MAKERS[args.what](args)
            shown.say("checking what was made")
            checked = output.check(fragments, complete)
        return _finish(args, checked, left_out)
    except ConfigErrors as errors:
        for problem in errors.problems:
            print(problem, file=sys.stderr)
        return BAD_CONFIG
    except UnusableError as error:
        _say(str(error))
        return BAD_CONFIG
    except LiveError as error:
        _say(str(error))
        return FAILED


def _misused(args: argparse.Namespace) -> str | None:
    if args.what == "kubeconfig":
        return "a kubeconfig is referred to by its name: it cannot be standard input" if "-" in args.files else None
    if args.live and args.files:
        return "--live reads from a cluster: give it no files"
    if not args.live and not args.files:
        return "which files? or --live"
    if not args.live and (args.kubeconfig or args.context):
        return "--kubeconfig and --context are for --live"
    return "standard input can be read once" if args.files.count("-") > 1 else None


def _kubeconfig(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.kubeconfigs import clusters_of

    fragments, left_out = clusters_of(args.files[0], args.context, copy=args.secrets is not None)
    return fragments, left_out, tuple


def _upstream_cluster(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.kubegateway import upstream_cluster
    from mcproxy.importing.kubegateway.import_objects import translate_all

    options = _options(args)
    wanted = [(upstream_cluster.GROUP, upstream_cluster.VERSION, upstream_cluster.PLURAL)]
    fragments, left_out = translate_all(_objects(args, wanted), options)
    return fragments, left_out, lambda found: (upstream_cluster.listener(found, options), *found)


def _options(args: argparse.Namespace) -> Options:
    from mcproxy.importing.kubegateway.rules import Mode
    from mcproxy.importing.kubegateway.upstream_cluster import Options
    from mcproxy.importing.objects import read_bounded

    return Options(
        bind=args.bind,
        certificate=(read_bounded(args.certificate[0]), read_bounded(args.certificate[1]))
        if args.certificate
        else None,
        client_ca=read_bounded(args.client_ca) if args.client_ca else b"",
        mode=Mode.AS_RUN if args.as_run else Mode.AS_WRITTEN if args.as_written else None,
    )


def _resource_registry(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.karmada import SOURCES
    from mcproxy.importing.karmada.import_objects import translate_all

    fragments, left_out, complete = translate_all(_objects(args, SOURCES), args.name)
    return fragments, left_out, complete


_MAKERS = {
    "kubeconfig": _kubeconfig,
    "upstreamcluster": _upstream_cluster,
    "resourceregistry": _resource_registry,
}


def _objects(args: argparse.Namespace, wanted: Sequence[tuple[str, str, str]]) -> list[Object]:
    """Return the objects, with the Secrets that they refer to where they come from a cluster."""
    from mcproxy.importing import live
    from mcproxy.importing.objects import read_objects

    return live.read(args.kubeconfig, args.context, wanted) if args.live else read_objects(args.files)


def _finish(args: argparse.Namespace, checked: Checked, left_out: Sequence[Note]) -> int:
    """Write what was made, and say what was not carried over. Raises OSError, UnusableError."""
    from mcproxy.importing import output

    notes = [*left_out, *checked.notes]
    if not any("clusters" in fragment.sections for fragment in checked.fragments):
        for note in notes:
            _say(str(note))
        _say("nothing could be carried over")
        return BAD_CONFIG
    secrets, inside = _folder(args)
    if checked.files and secrets is None:
        _say("the objects hold secrets, which are not printed: give --output FILE, or --secrets DIR")
        return USAGE
    text = output.text_of(checked.fragments, inside, [*_header(args), *_lines(notes)])
    if args.output is not None and not args.force and os.path.lexists(args.output):
        _say(f"{args.output} is there already; --force replaces it")
        return FAILED
    if checked.files and secrets is not None:
        output.write_files(secrets, checked.files, force=args.force)
    if args.output is None:
        sys.stdout.write(text)
    else:
        output.write_file(args.output, text.encode(), force=args.force)
    for note in notes:
        _say(str(note))
    if args.output is not None:
        _say(f"wrote {args.output}{_files(checked, secrets)}; next: mcproxy check {args.output}")
    return INCOMPLETE if left_out or checked.left_out else OK


def _folder(args: argparse.Namespace) -> tuple[str | None, str]:
    """Return where files with secrets go, and how the configuration names that folder."""
    if args.secrets is not None:
        folder = os.path.abspath(args.secrets)
        beside = args.output is not None and not os.path.isabs(args.secrets)
        return folder, os.path.relpath(folder, os.path.dirname(os.path.abspath(args.output))) if beside else folder
    if args.output is None:
        return None, ""
    name = os.path.basename(args.output).partition(".")[0] or "mcproxy"
    return os.path.join(os.path.dirname(os.path.abspath(args.output)), f"{name}-files"), f"{name}-files"


def _header(args: argparse.Namespace) -> list[str]:
    return [f"Made by mcproxy import {args.what}. The rights that each cluster must grant: mcproxy rbac -c FILE", ""]


def _lines(notes: Sequence[Note]) -> list[str]:
    if not notes:
        return ["Everything was carried over.", ""]
    return ["Not carried over, or different here:", *(f"  {note}" for note in notes), ""]


def _files(checked: Checked, secrets: str | None) -> str:
    return f" and {len(checked.files)} files in {secrets}" if checked.files else ""


def _say(text: str) -> None:
    print(f"mcproxy import: {text}", file=sys.stderr)
