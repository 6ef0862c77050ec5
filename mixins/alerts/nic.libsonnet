// NICs as the probe mesh sees them: what counts is whether packets pass, not what the driver says of the link.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: lib.groups(config, 'nic', [
      // The mesh exporter posts this alert to Alertmanager itself, in less than a second, with these same labels:
      // both become one alert. So no `for` here, which would resolve what the exporter has just raised.
      lib.alert(
        config,
        'FabricNicDisconnected',
        'critical',
        'mesh',
        s.nicDisconnected + ' == 1',
        'A NIC has lost the fabric.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} reaches none of its peers on network {{ $labels.network }}.'
      ),
      // Exporters keep the last 20 times (MOST): from then on it says that there may have been more.
      // By the times of the disconnects, because a gauge that is scraped misses what happens between two scrapes.
      lib.alert(
        config,
        'FabricNicFlapping',
        'warning',
        'mesh',
        s.flapping,
        'A NIC keeps losing the fabric and coming back.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} on network {{ $labels.network }} was disconnected {{ if ge $value 20.0 }}at least {{ end }}{{ $value | printf "%.0f" }} times within ' + config.flapWindow + '.',
        { keep_firing_for: config.flapKeepFiringFor, labels: { remediate: 'nccl' } }
      ),
      lib.alert(
        config,
        'FabricNicFlappingSlowly',
        'warning',
        'mesh',
        // Nor of one that has not come back: Alertmanager mutes the single disconnects of a NIC that flaps.
        local nic = config.clusterLabel + ', instance, device';
        '%(slow)s unless %(fast)s unless on (%(nic)s) (min by (%(nic)s) (min_over_time(%(disconnected)s[%(window)s])) == 1 or max by (%(nic)s) (max_over_time(%(connected)s[%(window)s])) == 0)' % {
          slow: s.flappingSlowly,
          fast: s.flapping,
          nic: nic,
          disconnected: s.series('fabricpulse_nic_disconnected'),
          connected: s.series('fabricpulse_nic_connected'),
          window: config.flapWindow,
        },
        'A NIC loses the fabric now and then, for hours.',
        'NIC {{ $labels.device }} of {{ $labels.instance }} on network {{ $labels.network }} was disconnected {{ if ge $value 20.0 }}at least {{ end }}{{ $value | printf "%.0f" }} times within ' + config.slowFlapWindow + '.',
        { keep_firing_for: config.slowFlapKeepFiringFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricNicUnknown',
        'warning',
        'mesh',
        s.once(s.last('fabricpulse_nic_state', 'state="unknown"') + ' == 1', 'device, network, leaf', 'group'),
        'It is not known whether a NIC is connected.',
        'The health of NIC {{ $labels.device }} of {{ $labels.instance }} is unknown (network {{ $labels.network }}, {{ $value }}): it has no peers, or its host was too late to judge. A fault of it would not be seen.',
        { 'for': config.nicUnknownFor, rare: true }
      ),
      // While the network is dead nothing is scraped, so the counter tells of it afterwards. The gauge tells of a host
      // that Prometheus reaches and that reaches none of the servers it needs: its pushed alerts get nowhere.
      lib.alert(
        config,
        'FabricFrontEndDisconnected',
        'warning',
        'mesh',
        '%s == 0 or increase(%s[%s]) > 0' % [
          s.last('fabricpulse_front_end_connected'),
          s.series('fabricpulse_front_end_disconnects_total'),
          config.frontEndWindow,
        ],
        'A host has lost the front-end network.',
        'None of the servers that {{ $labels.instance }} watches on its front-end network answers, or none did within the last ' + config.frontEndWindow + '; it could not push alerts.',
        { slow: true }
      ),
      // The link itself, exact from the kernel's counters: tells a bad cable from a bad path.
      lib.alert(
        config,
        'FabricLinkFlapping',
        'warning',
        'nic',
        s.linkFlaps(config.flapWindow, config.flapThreshold),
        'A link keeps going down and coming up.',
        'The link of {{ $labels.device }}{{ with $labels.port }} port {{ . }}{{ end }} on {{ $labels.instance }} went down {{ if ge $value 20.0 }}at least {{ end }}{{ $value | printf "%.0f" }} times within ' + config.flapWindow + '.',
        { keep_firing_for: config.flapKeepFiringFor, slow: true }
      ),
      lib.alert(
        config,
        'FabricPcieDegraded',
        'warning',
        'nic',
        s.once(s.pcieShare(config.pcieSelector), 'device, pci_address', 'min') + ' < 1',
        'A NIC runs on fewer PCIe lanes or at a lower PCIe speed than it can.',
        'PCIe of {{ $labels.device }} ({{ $labels.pci_address }}) on {{ $labels.instance }} gives {{ $value | humanizePercentage }} of what the NIC can take.',
        { 'for': config.pcieDegradedFor, rare: true }
      ),
      lib.alert(
        config,
        'FabricGidMoved',
        'warning',
        'nic',
        'max by (%s, instance, device, rdma_device, port) (%s) > 0' % [config.clusterLabel, s.recentIncrease(['gid_index_moves'])],
        'The GID that NCCL uses has moved to another index.',
        'The GID of {{ $labels.device }} ({{ $labels.rdma_device }} port {{ $labels.port }}) on {{ $labels.instance }} moved to another index {{ $value | printf "%.0f" }} times; running jobs keep the old index and lose their connections.',
        { slow: true }
      ),
      lib.alert(
        config,
        'FabricGidInconsistent',
        'warning',
        'nic',
        s.last('fabricpulse_nic_nccl_gid_index_consistent') + ' == 0',
        'The NICs of a host have no common GID index for NCCL.',
        'The RoCE ports of {{ $labels.instance }} have no GID, or one at different indexes; NCCL takes one index for all.',
        { 'for': config.gidInconsistentFor, seldom: true }
      ),
    ]),
  },
}
