"""Settings of the native probe engine from the configuration of the exporter."""

from fabricpulse.core.run_dir import clock_page_path, probe_ring_path
from fabricpulse.mesh import _probe_engine as native
from fabricpulse.mesh.config import MeshConfig

_RING_SECONDS = 8
_SMALLEST_RING, _LARGEST_RING = 1 << 12, 1 << 17


def engine_settings(config: MeshConfig, host: str, edges: int) -> native.Settings:
    """host : as the fleet calls it. edges : how many are expected; they size the ring."""
    probe, latency = config.probe, config.latency
    s = native.Settings()
    s.host = host
    s.ring_path = str(probe_ring_path())
    s.clock_path = str(clock_page_path())
    s.port = probe.port
    s.dscp = probe.dscp
    s.paths = probe.paths
    s.sweep = probe.sweep
    s.size_probes = probe.size_probes
    s.bind_device = probe.bind_device
    s.timestamps = probe.timestamps
    s.rate = probe.trains_per_s
    s.interval_ns = round(probe.down_after_s * 1e9)
    s.grace_ns = round(probe.grace_s * 1e9)
    s.window_ns = round(latency.window_s * 1e9)
    s.latency_ceiling_ns = round(latency.ceiling_s * 1e9)
    s.latency_factor = latency.factor
    s.latency_slack_ns = round(latency.slack_s * 1e9)
    s.receive_rate = probe.receive_packets_per_s
    s.priority = 1 if probe.realtime else 0
    wanted = int(2 * max(edges, 1) * probe.trains_per_s * _RING_SECONDS)
    s.ring_capacity = min(max(1 << (wanted - 1).bit_length(), _SMALLEST_RING), _LARGEST_RING)
    return s


def temporary_settings(config: MeshConfig, host: str) -> native.Settings:
    """Of the engine for temporary peers: one source port, delays only, the first port behind those of the mesh."""
    s = engine_settings(config, host, 0)
    s.ring_path = ""
    s.port = config.probe.port + native.MAX_PATHS
    s.paths, s.sweep, s.size_probes = 1, 0, False
    s.window_ns = 2_000_000_000
    return s
