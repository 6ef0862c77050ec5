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
          s.last('fabricpulse_lane_state') + ' == 0',
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
      ]),
    ],
  },
}
