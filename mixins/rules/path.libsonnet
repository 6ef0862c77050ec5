// Recorded per edge: only those that lose packets, which are few. Alerts read them several times over.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    local edge = '%s, instance, device, peer, peer_device' % config.clusterLabel,
    local increase(name) = 'sum by (%s) (increase(%s[%s]))' % [edge, s.series(name), config.pathLossWindow],
    local lost = increase('fabricpulse_edge_probes_lost_total'),
    local received = increase('fabricpulse_edge_probes_received_total'),
    // A NIC or a host that is silent altogether loses all of it: that is not a lossy path, and has alerts of its own.
    local silent = '(max_over_time(%s[%s]) > 0)' % [
      s.series('fabricpulse_edge_evidence', 'evidence=~"own_nic_disconnected|peer_silent|peer_host_silent|peer_nic_silent"'),
      config.pathLossWindow,
    ],
    groups+: [
      {
        name: 'fabricpulse-path.rules',
        rules: [
          {
            record: 'edge:fabricpulse_edge_probes_lost:lossy_ratio',
            expr: '%s / (%s + %s) > %g and on (%s) %s >= %d unless on (%s) %s' % [
              lost,
              lost,
              received,
              config.pathLossRatio,
              edge,
              lost,
              config.pathLossLeast,
              edge,
              silent,
            ],
          },
        ],
      },
    ],
  },
}
