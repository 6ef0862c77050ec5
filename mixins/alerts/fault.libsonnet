// Faults that the coordinator has pinned to a component of the fabric, from the evidence of all hosts. NICs and hosts
// have alerts of their own.
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
          // The alert's own label `component` would hide that of the series.
          'max by (%s, what, kind, faulty, peer, leaf, network) (label_replace(%s, "faulty", "$1", "component", "(.*)")) >= %g' % [config.clusterLabel, suspects, config.faultConfidence],
          'A switch or a link of the fabric is at fault.',
          '{{ if eq $labels.what "mtu" }}The drop of large packets{{ else }}The {{ $labels.what }}{{ end }} that hosts see is that of {{ $labels.kind }} {{ $labels.faulty }}{{ if $labels.peer }} to {{ $labels.peer }}{{ end }}, with a probability of {{ $value | humanizePercentage }}.',
          { 'for': config.faultFor, keep_firing_for: config.faultKeepFiring }
        ),
      ]),
    ],
  },
}
