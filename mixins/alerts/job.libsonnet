// What the job feels: lanes of the NCCL plugin.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      lib.group(config, 'job', [
        lib.alert(
          config,
          'FabricLaneDown',
          'warning',
          'plugin',
          // Not while remediation keeps the job off this NIC on purpose.
          '%s == 0 unless on (%s, instance, workload, device) %s > 0' % [
            s.last('fabricpulse_lane_state'),
            config.clusterLabel,
            s.last('fabricpulse_lane_nic_avoided'),
          ],
          'A job runs without one of its lanes.',
          'No lane of workload {{ $labels.workload }} on {{ $labels.instance }} carries traffic over NIC {{ $labels.device }}; the job runs on the others.',
          { 'for': config.laneDownFor }
        ),
        lib.alert(
          config,
          'FabricLaneFailovers',
          'warning',
          'plugin',
          '%s >= %d' % [s.laneFailoversPerLane(config.laneFailoverWindow), config.laneFailoverThreshold],
          'A job moves its traffic between NICs again and again.',
          'Traffic of workload {{ $labels.workload }} on {{ $labels.instance }} was moved away from NIC {{ $labels.device }} {{ $value | printf "%.0f" }} times within ' + config.laneFailoverWindow + '.'
        ),
        // The head of the chain of those who wait: waited for by others, and not waiting itself.
        lib.alert(
          config,
          'FabricStraggler',
          'warning',
          'plugin',
          local waiting = s.last('fabricpulse_request_waiting_seconds', 'waits_for=~"peer_send|peer_receive"');
          local job = '%s, workload' % config.clusterLabel;
          'max by (%(job)s, rank, peer) (label_replace(%(waiting)s, "rank", "$1", "peer_rank", "(.+)")) unless on (%(job)s, rank) %(any)s' % {
            job: job,
            waiting: waiting,
            any: s.last('fabricpulse_request_waiting_seconds'),
          },
          'A rank makes the others wait.',
          'Rank {{ $labels.rank }} of workload {{ $labels.workload }} on {{ $labels.peer }} has not offered data for {{ $value | printf "%.0f" }} s that other ranks wait for, and waits for nobody: its GPU, its input or its process, not the network.',
          { 'for': config.stragglerFor }
        ),
      ]),
    ],
  },
}
