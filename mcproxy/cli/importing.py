"""`mcproxy import`: makes a configuration from kubeconfigs and objects of KubeGateway, Karmada and Kubernetes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcproxy.cli import BAD_CONFIG, DEFAULT_FILE, FAILED, OK, USAGE
from mcproxy.cli.progress import progress

if TYPE_CHECKING:
    from mcproxy.importing.fragment import Checked, Complete, Fragment, Note
    from mcproxy.importing.kubegateway.upstream_cluster import KubeGatewayOptions
    from mcproxy.importing.object_files import Object

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

INCOMPLETE = 3
"""Exit status if an object or context was omitted completely."""

_EXAMPLES = """\
examples:
  mcproxy import kubeconfig ~/.kube/config --output clusters.yaml
  kubectl get upstreamclusters -o yaml | mcproxy import upstreamcluster - --output mcproxy.yaml
  mcproxy import upstreamcluster --live --context gateway --output mcproxy.yaml
  mcproxy import resourceregistry --live --context karmada-apiserver --output fleet.yaml
  kubectl get ingresses -A -o yaml | mcproxy import ingress - --cluster east --cluster west --output web.yaml
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
--output). See `mcproxy docs migrate-kubegateway`.

examples:
  kubectl get upstreamclusters -o yaml > upstream.yaml
  mcproxy import upstreamcluster upstream.yaml --certificate gateway.crt gateway.key --output mcproxy.yaml
  mcproxy import upstreamcluster --live --context gateway --output mcproxy.yaml
"""
_RESOURCE_REGISTRY = """\
The files hold ResourceRegistry and Cluster objects, and the Secrets that the clusters refer to. See
`mcproxy docs migrate-karmada`.

examples:
  kubectl --context karmada-apiserver get resourceregistries,clusters -o yaml > karmada.yaml
  kubectl --context karmada-apiserver -n karmada-cluster get secrets -o yaml > secrets.yaml
  mcproxy import resourceregistry karmada.yaml secrets.yaml --output fleet.yaml
  mcproxy import resourceregistry --live --context karmada-apiserver --output fleet.yaml
"""
_INGRESS = """\
The files hold Ingress objects of Kubernetes, MultiClusterIngress and MultiClusterService objects of Karmada,
ServiceExport and ServiceImport with their propagation policies, and the Secrets of certificates. The output is included
by the file that has the clusters. See `mcproxy docs ingress` and `mcproxy docs services`.

examples:
  kubectl get ingresses,secrets -A -o yaml > shop.yaml
  mcproxy import ingress shop.yaml --cluster east --cluster west --output conf.d/shop.yaml
  mcproxy import ingress karmada.yaml --listener web --output conf.d/web.yaml
"""
_API_SERVICE = """\
The files hold APIService objects; those of the cluster's own API, which have no service, are passed over. Each API
server becomes a cluster entry, and gets users by the certificate of --front-proxy. The output is included by the
file that has the cluster. See `mcproxy docs api-services`.

examples:
  kubectl get apiservices -o yaml > apis.yaml
  mcproxy import apiservice apis.yaml --cluster east --front-proxy fp.crt fp.key --output conf.d/apis.yaml
  mcproxy import apiservice --live east --cluster east --front-proxy fp.crt fp.key --output conf.d/apis.yaml
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command with its subcommands."""
    parser = subparsers.add_parser(
        "import",
        help="make a configuration from kubeconfigs, KubeGateway's or Karmada's objects, APIServices, or Ingresses",
        description="Make a configuration from what other programs use. What cannot be carried over is reported, one "
        "line each, on standard error and in comments of the output. Exit status: 0 done, 3 something was left out.",
        epilog=_EXAMPLES,
    )
    below = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    kubeconfig = _add(below, "kubeconfig", "clusters from every context of a kubeconfig", _KUBECONFIG)
    kubeconfig.add_argument("files", nargs=1, metavar="FILE", help="the kubeconfig")
    kubeconfig.add_argument("--context", metavar="NAME", action="append", help="only this context; may be repeated")
    kubeconfig.add_argument(
        "--name",
        metavar="NAME",
        action="append",
        default=[],
        help="the name of the cluster (default: made from the context's); of several one for each --context",
    )
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
    api_service = _add(below, "apiservice", "API servers of a server from APIService objects", _API_SERVICE)
    api_service.add_argument("files", nargs="*", metavar="FILE", help="YAML or JSON; - is standard input")
    api_service.add_argument(
        "--live",
        nargs="?",
        const="",
        metavar="CONTEXT",
        help="read the objects from the cluster of a context of the kubeconfig instead (default: the current one; "
        "needs the kubernetes package)",
    )
    api_service.add_argument("--kubeconfig", metavar="FILE", help="of --live (default: as kubectl finds it)")
    api_service.add_argument(
        "--front-proxy",
        nargs=2,
        required=True,
        metavar=("FILE", "FILE"),
        help="the certificate, and its key, by which the API servers trust the user in X-Remote-*; PEM",
    )
    api_service.add_argument(
        "--cluster", metavar="NAME", required=True, help="the cluster of your file whose API they extend"
    )
    api_service.add_argument("--authentication", metavar="NAME", help="the set of your file that the server has")
    api_service.add_argument(
        "--name", metavar="NAME", default="apiservices", help="the name of the server (default: %(default)s)"
    )
    ingress = _add(below, "ingress", "ingresses and exported services from Ingress objects and Karmada's", _INGRESS)
    ingress.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON; - is standard input")
    ingress.add_argument(
        "--cluster",
        metavar="NAME",
        action="append",
        default=[],
        help="a cluster of your file that has the services; repeatable. Where a MultiClusterService names its clusters "
        "these are taken",
    )
    ingress.add_argument(
        "--listener",
        metavar="NAME",
        action="append",
        default=[],
        help="a listener of your file that serves them; repeatable (default: listeners are made, for ports 80 and 443)",
    )
    ingress.add_argument(
        "--namespace", metavar="NAME", default="default", help="of objects without one (default: %(default)s)"
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
        "--live", action="store_true", help="read the objects from a cluster instead (needs the kubernetes package)"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="of --live (default: as kubectl finds it)")
    parser.add_argument("--context", metavar="NAME", help="of --live (default: the current context)")


def run(args: argparse.Namespace) -> int:
    """Make and write a configuration; 0 done, 3 objects were omitted, 78 invalid input, 1 any other failure."""
    from mcproxy.config.problem import ConfigErrors
    from mcproxy.importing.fragment import STUBS, check
    from mcproxy.importing.live_cluster import LiveError
    from mcproxy.importing.object_files import UnusableError

    if wrong := _misused(args):
        _say(wrong)
        return USAGE
    try:
        with progress(f"importing {args.what}") as shown:
            fragments, left_out, complete = _MAKERS[args.what](args)
            shown.say("checking what was made")
            checked = check(fragments, complete)
        return _finish(args, checked.without(STUBS), left_out)
    except ConfigErrors as errors:
        for line in errors.lines:
            print(line, file=sys.stderr)
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
    if args.what == "ingress":
        return "standard input can be read once" if args.files.count("-") > 1 else None
    if args.what == "apiservice":
        args.live, args.context = args.live is not None, args.live or None
    if args.live and args.files:
        return "--live reads from a cluster: give it no files"
    if not args.live and not args.files:
        return "which files? or --live"
    if not args.live and (args.kubeconfig or args.context):
        return "--kubeconfig and --context are for --live"
    return "standard input can be read once" if args.files.count("-") > 1 else None


def _kubeconfig(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.kubeconfigs import clusters_of

    fragments, left_out = clusters_of(args.files[0], args.context, copy=args.secrets is not None, names=args.name)
    return fragments, left_out, tuple


def _upstream_cluster(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.kubegateway import upstream_cluster
    from mcproxy.importing.kubegateway.upstream_cluster import translate_all

    options = _options(args)
    wanted = [(upstream_cluster.GROUP, upstream_cluster.VERSION, upstream_cluster.PLURAL)]
    fragments, left_out = translate_all(_objects(args, wanted), options)
    return fragments, left_out, lambda found: (upstream_cluster.listener(found, options), *found)


def _options(args: argparse.Namespace) -> KubeGatewayOptions:
    from mcproxy.importing.kubegateway.policy_rules import Mode
    from mcproxy.importing.kubegateway.upstream_cluster import KubeGatewayOptions
    from mcproxy.importing.object_files import read_bounded

    return KubeGatewayOptions(
        bind=args.bind,
        certificate=(read_bounded(args.certificate[0]), read_bounded(args.certificate[1]))
        if args.certificate
        else None,
        client_ca=read_bounded(args.client_ca) if args.client_ca else b"",
        mode=Mode.AS_RUN if args.as_run else Mode.AS_WRITTEN if args.as_written else None,
    )


def _resource_registry(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.karmada import SOURCES, translate_all

    fragments, left_out, complete = translate_all(_objects(args, SOURCES), args.name)
    return fragments, left_out, complete


def _api_service(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.api_services import SOURCE, APIServiceOptions, translate_all

    certificate, key = args.front_proxy
    options = APIServiceOptions(args.name, args.cluster, args.authentication, (certificate, key))
    return translate_all(_objects(args, [SOURCE]), options)


def _ingress(args: argparse.Namespace) -> tuple[list[Fragment], list[Note], Complete]:
    from mcproxy.importing.ingress.ingresses import IngressOptions, translate_all
    from mcproxy.importing.ingress.placed_objects import read_placed

    options = IngressOptions(clusters=tuple(dict.fromkeys(args.cluster)), listeners=tuple(dict.fromkeys(args.listener)))
    return translate_all(read_placed(args.files, args.namespace), options)


_MAKERS = {
    "apiservice": _api_service,
    "ingress": _ingress,
    "kubeconfig": _kubeconfig,
    "upstreamcluster": _upstream_cluster,
    "resourceregistry": _resource_registry,
}


def _objects(args: argparse.Namespace, wanted: Sequence[tuple[str, str, str]]) -> list[Object]:
    """Return the objects; from a cluster, also the Secrets that they refer to."""
    from mcproxy.importing import live_cluster
    from mcproxy.importing.object_files import read_objects

    return live_cluster.read(args.kubeconfig, args.context, wanted) if args.live else read_objects(args.files)


def _finish(args: argparse.Namespace, checked: Checked, left_out: Sequence[Note]) -> int:
    """Write the configuration, and report settings that were not converted. Raises OSError, UnusableError."""
    from mcproxy.importing.fragment import text_of, write_file, write_files

    notes = [*left_out, *checked.notes]
    made = ("ingresses", "serviceExports") if args.what == "ingress" else ("clusters",)
    if not any(section in fragment.sections for fragment in checked.fragments for section in made):
        for note in notes:
            _say(str(note))
        _say("nothing could be carried over")
        return BAD_CONFIG
    secrets, inside = _folder(args)
    if checked.files and secrets is None:
        _say("the objects hold secrets, which are not printed: give --output FILE, or --secrets DIR")
        return USAGE
    text = text_of(checked.fragments, inside, [*_header(args), *_lines(notes)])
    if args.output is not None and not args.force and os.path.lexists(args.output):
        _say(f"{args.output} is there already; --force replaces it")
        return FAILED
    if checked.files and secrets is not None:
        write_files(secrets, checked.files, force=args.force)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_file(args.output, text.encode(), force=args.force)
    for note in notes:
        _say(str(note))
    if args.output is not None:
        _say(f"wrote {args.output}{_files(checked, secrets)}; next: {_next(args.output, checked)}")
    return INCOMPLETE if left_out or checked.left_out else OK


def _folder(args: argparse.Namespace) -> tuple[str | None, str]:
    """Return the folder of files with secrets, and its name in the configuration."""
    if args.secrets is not None:
        folder = os.path.abspath(args.secrets)
        is_relative = args.output is not None and not os.path.isabs(args.secrets)
        return folder, os.path.relpath(folder, os.path.dirname(os.path.abspath(args.output))) if is_relative else folder
    if args.output is None:
        return None, ""
    name = os.path.basename(args.output).partition(".")[0] or "mcproxy"
    return os.path.join(os.path.dirname(os.path.abspath(args.output)), f"{name}-files"), f"{name}-files"


def _header(args: argparse.Namespace) -> list[str]:
    return [
        f"Made by mcproxy import {args.what}. The rights that each cluster must grant: mcproxy rbac{_main(args)}",
        "",
    ]


def _main(args: argparse.Namespace) -> str:
    """Return the command-line option for the main file of the written configuration, "" for the default file."""
    file = DEFAULT_FILE if args.output is None else main_file(args.output)
    return "" if file == DEFAULT_FILE else f" -c {shlex.quote(file)}"


def main_file(output: str) -> str:
    """Return the main file with which a daemon uses `output`: a file that (probably) includes it, else the default."""
    path = os.path.abspath(output)
    folder = os.path.dirname(path)
    for place in (folder, os.path.dirname(folder)):
        candidate = os.path.join(place, os.path.basename(DEFAULT_FILE))
        if candidate != path and os.path.isfile(candidate):
            return candidate
    return DEFAULT_FILE if os.path.basename(path) != os.path.basename(DEFAULT_FILE) else path


def _next(output: str, checked: Checked) -> str:
    """Return the next steps for the user after the file was written."""
    sections = {section for fragment in checked.fragments for section in fragment.sections}
    if {"listeners", "servers"} <= sections:
        return f"mcproxy check {shlex.quote(output)}"
    main = main_file(output)
    path = os.path.abspath(output)
    steps = []
    if main != path and not _includes(main, path):
        near = os.path.relpath(path, os.path.dirname(main))
        steps.append(f"include: [{path if near.startswith('..') else near}]")
    needed = ("listeners", "servers") if "clusters" in sections else ("clusters",)
    steps += [f"{section}" for section in needed if main == path and section not in sections]
    if not sections.isdisjoint({"ingresses", "serviceExports"}):
        if "listeners" not in sections and "ingresses" in sections:
            steps.append("the listeners that it names, with serves: Ingress")
    elif main != path and "servers" not in sections:
        steps.append("a server with what was made")
    check = "mcproxy check" if main == DEFAULT_FILE else f"mcproxy check {shlex.quote(main)}"
    return f"write {' and '.join(steps)} in {main}, then {check}" if steps else check


def _includes(main: str, path: str) -> bool:
    from mcproxy.cli.lenient_reader import included_files

    try:
        with open(main, encoding="utf-8", errors="replace") as file:
            included = included_files(file.read(), main, os.environ)
        return any(os.path.realpath(each) == os.path.realpath(path) for each in included)
    except OSError:
        return False


def _lines(notes: Sequence[Note]) -> list[str]:
    if not notes:
        return ["Everything was carried over.", ""]
    return ["Not carried over, or different here:", *(f"  {note}" for note in notes), ""]


def _files(checked: Checked, secrets: str | None) -> str:
    many = len(checked.files)
    return f" and {many} file{'s' if many > 1 else ''} in {secrets}" if many else ""


def _say(text: str) -> None:
    print(f"mcproxy import: {text}", file=sys.stderr)
