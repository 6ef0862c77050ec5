// Faults that the coordinator has pinned to a component of the fabric, from the evidence of all hosts, and cables that
// it has found at a wrong leaf, and leaves that lack uplinks. NICs and hosts have alerts of their own.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    local suspects = s.series('fabricpulse_fault_component', 'kind=~"switch|link"'),
    groups+: [
      lib.group(config, 'fault', [
        lib.alert(
          config,
          'FabricFaultLocated',
          'critical',
          'clocksync',
          'max by (%s, what, kind, faulty, peer, leaf, network) (%s) >= %g' % [config.clusterLabel, suspects, config.faultConfidence],
          'A switch or a link of the fabric is at fault.',
          '{{ if eq $labels.what "mtu" }}The drop of large packets{{ else }}The {{ $labels.what }}{{ end }} that hosts see is that of {{ $labels.kind }} {{ $labels.faulty }}{{ if $labels.peer }} to {{ $labels.peer }}{{ end }}, with a probability of {{ $value | humanizePercentage }}.',
          { 'for': config.faultFor, keep_firing_for: config.faultKeepFiring }
        ),
        lib.alert(
          config,
          'FabricNicMiscabled',
          'warning',
          'clocksync',
          // Without the names of the leaves: those follow the NICs that are known, and another name would be another alert.
          'max by (%s, peer, peer_device, reason) (%s) > 0' % [config.clusterLabel, s.series('fabricpulse_topology_nic_miscabled')],
          'The cable of a NIC leads to a wrong leaf.',
          'The cable of {{ $labels.peer_device }} of {{ $labels.peer }} leads to {{ if eq $labels.reason "wrong_rail" }}a leaf of another rail{{ else }}another leaf than the topology file or the other NICs of its host suggest{{ end }}; `fabricpulse mesh topology` names both.',
          { 'for': config.miscabledFor, keep_firing_for: config.miscabledKeepFiring }
        ),
        lib.alert(
          config,
          'FabricLeafFewerPaths',
          'warning',
          'clocksync',
          'max by (%s, leaf, network) (%s) > 0' % [config.clusterLabel, s.series('fabricpulse_leaf_paths_missing')],
          'A leaf has fewer live paths than its siblings.',
          'Paths from leaf {{ $labels.leaf }}{{ if $labels.network }} ({{ $labels.network }}){{ end }} have {{ $value }} next hops fewer than those from most of its siblings; `fabricpulse mesh show --fleet` says which, and since when.',
          { 'for': config.fewerPathsFor, keep_firing_for: config.fewerPathsKeepFiring }
        ),
      ]),
    ],
  },
}
