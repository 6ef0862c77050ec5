"""Optical modules: values of their EEPROM. Pure.

Memory maps: CMIS 5.0 (QSFP-DD, OSFP, QSFP112), SFF-8636 (QSFP, QSFP28), SFF-8472 (SFP).

Flags of CMIS and SFF-8636 are latched: a module holds what happened since they were last read, by whomever.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

# (page, offset, length, two-wire address) -> bytes. Raises OSError.
ReadEeprom = Callable[[int, int, int, int], bytes]

_SFP = {0x03: "SFP"}
_SFF_8636 = {0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28"}
_CMIS = {0x18: "QSFP-DD", 0x19: "OSFP", 0x1B: "DSFP", 0x1E: "QSFP-CMIS", 0x1F: "SFP-DD"}
_MAIN, _DIAGNOSTICS = 0x50, 0x51


@dataclass(frozen=True)
class Flags:
    """Alarms of the module, per lane; empty where the module does not declare them as supported.

    receive_loss, transmit_loss : loss of signal, of light and from the NIC. receive_unlocked, transmit_unlocked : loss
    of lock of the clock recovery. transmit_fault : of the laser or its driver.
    """

    receive_loss: tuple[bool, ...] = ()
    transmit_loss: tuple[bool, ...] = ()
    receive_unlocked: tuple[bool, ...] = ()
    transmit_unlocked: tuple[bool, ...] = ()
    transmit_fault: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Module:
    """A module. Lists are per lane, from lane 1; a lane that shows nothing at all is None in each of them.

    temperature_c : None if the module does not measure. Powers in watts, bias in amperes.
    """

    form: str
    vendor: str
    part_number: str
    serial_number: str
    temperature_c: float | None = None
    supply_v: float | None = None
    received_w: tuple[float | None, ...] = ()
    transmitted_w: tuple[float | None, ...] = ()
    bias_a: tuple[float | None, ...] = ()
    flags: Flags = Flags()


def read_module(read: ReadEeprom) -> Module | None:
    """The module in the port, None if its kind is unknown. Raises OSError when it cannot be read."""
    lower = read(0, 0, 128, _MAIN)
    kind = lower[0]
    if kind in _CMIS:
        return _cmis(_CMIS[kind], lower, read)
    if kind in _SFF_8636:
        return _sff_8636(_SFF_8636[kind], lower, read)
    if kind in _SFP:
        return _sfp(_SFP[kind], lower, read)
    return None


def _cmis(form: str, lower: bytes, read: ReadEeprom) -> Module:
    upper = read(0, 128, 128, _MAIN)
    names = (_text(upper[1:17]), _text(upper[20:36]), _text(upper[38:54]))
    # Flat memory: passive copper has no diagnostics.
    if lower[2] & 0x80:
        return Module(form, *names)
    temperature, supply = struct.unpack_from(">hH", lower, 14)
    lanes = read(0x11, 128, 128, _MAIN)
    advertised = read(0x01, 128, 128, _MAIN)
    multiplier = (1, 2, 4, 1)[advertised[32] >> 3 & 3]
    transmitted = struct.unpack_from(">8H", lanes, 26)
    bias = struct.unpack_from(">8H", lanes, 42)
    received = struct.unpack_from(">8H", lanes, 58)
    # Page 01h bytes 157 and 158 tell which of the flags in page 11h the module has.
    transmit, receive = advertised[29], advertised[30]
    flags = Flags(
        receive_loss=_bits(lanes[19], 8, supported=receive & 2),
        transmit_loss=_bits(lanes[8], 8, supported=transmit & 2),
        receive_unlocked=_bits(lanes[20], 8, supported=receive & 4),
        transmit_unlocked=_bits(lanes[9], 8, supported=transmit & 4),
        transmit_fault=_bits(lanes[7], 8, supported=transmit & 1),
    )
    scaled_bias = [value * multiplier for value in bias]
    return _measured(form, names, temperature, supply, received, transmitted, scaled_bias, flags)


def _sff_8636(form: str, lower: bytes, read: ReadEeprom) -> Module:
    upper = read(0, 128, 128, _MAIN)
    names = (_text(upper[20:36]), _text(upper[40:56]), _text(upper[68:84]))
    temperature, supply = struct.unpack_from(">h2xH", lower, 22)
    received = struct.unpack_from(">4H", lower, 34)
    bias = struct.unpack_from(">4H", lower, 42)
    transmitted = struct.unpack_from(">4H", lower, 50)
    # Bytes 3 to 5 are flags. Loss of light is in every module; bytes 194 and 195 tell which others are.
    lock, options = upper[66], upper[67]
    flags = Flags(
        receive_loss=_bits(lower[3], 4),
        transmit_loss=_bits(lower[3] >> 4, 4, supported=options & 2),
        receive_unlocked=_bits(lower[5], 4, supported=lock & 0x10),
        transmit_unlocked=_bits(lower[5] >> 4, 4, supported=lock & 0x20),
        transmit_fault=_bits(lower[4], 4, supported=options & 8),
    )
    return _measured(form, names, temperature, supply, received, transmitted, list(bias), flags)


def _sfp(form: str, lower: bytes, read: ReadEeprom) -> Module:
    names = (_text(lower[20:36]), _text(lower[40:56]), _text(lower[68:84]))
    # Byte 92, bit 6: digital diagnostics are there.
    if not lower[92] & 0x40:
        return Module(form, *names)
    diagnostics = read(0, 0, 128, _DIAGNOSTICS)
    temperature, supply, bias, transmitted, received = struct.unpack_from(">hHHHH", diagnostics, 96)
    # Byte 93 tells which of the states in byte 110 are there; these are not latched.
    flags = Flags(
        receive_loss=_bits(diagnostics[110] >> 1, 1, supported=lower[93] & 0x10),
        transmit_fault=_bits(diagnostics[110] >> 2, 1, supported=lower[93] & 0x20),
    )
    return _measured(form, names, temperature, supply, (received,), (transmitted,), [bias], flags)


def _measured(
    form: str,
    names: tuple[str, str, str],
    temperature: int,
    supply: int,
    received: tuple[int, ...],
    transmitted: tuple[int, ...],
    bias: list[int],
    flags: Flags,
) -> Module:
    """Units of the maps: 1/256 degree, 100 uV, 0.1 uW, 2 uA. A module that measures nothing (copper) shows zeros."""
    if not temperature and not supply:
        return Module(form, *names)
    used = [any(lane) for lane in zip(received, transmitted, bias, strict=True)]

    def scaled(values: tuple[int, ...] | list[int], unit: float) -> tuple[float | None, ...]:
        return tuple(value * unit if lane else None for value, lane in zip(values, used, strict=True))

    return Module(
        form,
        *names,
        temperature / 256,
        supply * 1e-4,
        scaled(received, 1e-7),
        scaled(transmitted, 1e-7),
        scaled(bias, 2e-6),
        flags,
    )


def _bits(byte: int, lanes: int, *, supported: int = 1) -> tuple[bool, ...]:
    return tuple(bool(byte >> lane & 1) for lane in range(lanes)) if supported else ()


def _text(raw: bytes) -> str:
    return "".join(chr(byte) for byte in raw if 0x20 <= byte < 0x7F).strip()
