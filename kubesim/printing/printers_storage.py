"""Table printers of volumes, claims and storage classes (pkg/printers/internalversion/printers.go)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kubesim.printing.formatting import (
    AGE,
    UNSET,
    Cells,
    JSONDict,
    Printer,
    age,
    meta,
    name,
    simple,
    spec,
    status,
)

ACCESS = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(modes: list[str] | None) -> str:
    return ",".join(ACCESS[mode] for mode in ACCESS if mode in (modes or ()))


def volume(obj: JSONDict, now: datetime) -> Cells:
    claim = spec(obj).get("claimRef") or {}
    phase = "Terminating" if meta(obj).get("deletionTimestamp") else status(obj).get("phase", "")
    return [
        name(obj),
        (spec(obj).get("capacity") or {}).get("storage", ""),
        _modes(spec(obj).get("accessModes")),
        spec(obj).get("persistentVolumeReclaimPolicy", ""),
        phase,
        f"{claim.get('namespace')}/{claim['name']}" if claim.get("name") else "",
        spec(obj).get("storageClassName", ""),
        spec(obj).get("volumeAttributesClassName") or UNSET,
        status(obj).get("reason", ""),
        age(obj, now),
        spec(obj).get("volumeMode") or UNSET,
    ]


def claim(obj: JSONDict, now: datetime) -> Cells:
    phase = "Terminating" if meta(obj).get("deletionTimestamp") else status(obj).get("phase", "")
    bound = bool(spec(obj).get("volumeName"))
    return [
        name(obj),
        phase,
        spec(obj).get("volumeName", ""),
        (status(obj).get("capacity") or {}).get("storage", "") if bound else "",
        _modes(status(obj).get("accessModes")) if bound else "",
        spec(obj).get("storageClassName", ""),
        spec(obj).get("volumeAttributesClassName") or UNSET,
        age(obj, now),
        spec(obj).get("volumeMode") or UNSET,
    ]


def storage_class(obj: JSONDict, now: datetime) -> Cells:
    default = (meta(obj).get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [
        name(obj) + (" (default)" if default else ""),
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy") or "Delete",
        obj.get("volumeBindingMode") or UNSET,
        bool(obj.get("allowVolumeExpansion")),
        age(obj, now),
    ]


def csi_node(obj: JSONDict, now: datetime) -> Cells:
    return [name(obj), len(spec(obj).get("drivers") or ()), age(obj, now)]


def volume_attachment(obj: JSONDict, now: datetime) -> Cells:
    source = spec(obj).get("source") or {}
    return [
        name(obj),
        spec(obj).get("attacher", ""),
        source.get("persistentVolumeName", ""),
        spec(obj).get("nodeName", ""),
        bool(status(obj).get("attached")),
        age(obj, now),
    ]


PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "PersistentVolume"): Printer(
        (
            "Capacity|string|0|@core.v1.PersistentVolumeSpec.capacity",
            "Access Modes|string|0|@core.v1.PersistentVolumeSpec.accessModes",
            "Reclaim Policy|string|0|@core.v1.PersistentVolumeSpec.persistentVolumeReclaimPolicy",
            "Status|string|0|@core.v1.PersistentVolume.status",
            "Claim|string|0|@core.v1.PersistentVolumeSpec.claimRef",
            "StorageClass|string|0|StorageClass of the pv",
            "VolumeAttributesClass|string|0|VolumeAttributesClass of the pv",
            "Reason|string|0|@core.v1.PersistentVolumeStatus.reason",
            AGE,
            "VolumeMode|string|1|@core.v1.PersistentVolumeSpec.volumeMode",
        ),
        volume,
    ),
    ("", "PersistentVolumeClaim"): Printer(
        (
            "Status|string|0|@core.v1.PersistentVolumeClaim.status",
            "Volume|string|0|@core.v1.PersistentVolumeClaimSpec.volumeName",
            "Capacity|string|0|@core.v1.PersistentVolumeClaimStatus.capacity",
            "Access Modes|string|0|@core.v1.PersistentVolumeClaimStatus.accessModes",
            "StorageClass|string|0|StorageClass of the pvc",
            "VolumeAttributesClass|string|0|VolumeAttributesClass of the pvc",
            AGE,
            "VolumeMode|string|1|@core.v1.PersistentVolumeClaimSpec.volumeMode",
        ),
        claim,
    ),
    ("storage.k8s.io", "StorageClass"): simple(
        storage_class,
        "Provisioner|string|0|@storage.v1.StorageClass.provisioner",
        "ReclaimPolicy|string|0|@storage.v1.StorageClass.reclaimPolicy",
        "VolumeBindingMode|string|0|@storage.v1.StorageClass.volumeBindingMode",
        "AllowVolumeExpansion|string|0|@storage.v1.StorageClass.allowVolumeExpansion",
    ),
    ("storage.k8s.io", "CSINode"): simple(
        csi_node, "Drivers|integer|0|Drivers indicates the number of CSI drivers registered on the node"
    ),
    ("storage.k8s.io", "VolumeAttachment"): simple(
        volume_attachment,
        "Attacher|string|0|@storage.v1.VolumeAttachmentSpec.attacher",
        "PV|string|0|@storage.v1.VolumeAttachmentSource.persistentVolumeName",
        "Node|string|0|@storage.v1.VolumeAttachmentSpec.nodeName",
        "Attached|boolean|0|@storage.v1.VolumeAttachmentStatus.attached",
    ),
}
