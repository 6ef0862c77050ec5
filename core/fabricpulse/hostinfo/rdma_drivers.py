"""Families of RDMA drivers: devices whose drivers name their counters alike."""

from collections.abc import Mapping

# Kernel module of the PCI function -> family. RDMA drivers of Ethernet NICs are auxiliary drivers: the function
# belongs to the Ethernet driver.
DRIVER_FAMILIES: Mapping[str, str] = {
    "mlx5_core": "mlx5",
    "bnxt_en": "bnxt_re",
    "bnxt_re": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "irdma": "irdma",
    "hns3": "hns",
    "hns_roce": "hns",
    "efa": "efa",
}
# Device names as the drivers give them, for devices without a PCI function to ask.
NAME_PREFIXES: Mapping[str, str] = {
    "mlx5_": "mlx5",
    "bnxt_re": "bnxt_re",
    "irdma": "irdma",
    "hns_": "hns",
    "rdmap": "efa",
    "efa_": "efa",
    "rxe": "rxe",
}


def family(device: str, module: str, *, has_parent: bool) -> str:
    """The driver family of an RDMA device, or "" if unknown.

    module : kernel module of its PCI function, "" if it has none. has_parent : the device has a `parent` file, which
    only software devices on a netdev have.
    """
    if module in DRIVER_FAMILIES:
        return DRIVER_FAMILIES[module]
    if not module:
        if has_parent and not device.startswith("siw"):
            return "rxe"
        return next((name for prefix, name in NAME_PREFIXES.items() if device.startswith(prefix)), "")
    return ""
