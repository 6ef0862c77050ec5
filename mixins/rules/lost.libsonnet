// Recorded per job: how many of its GPUs the network keeps waiting. GPU-hours are the sum of it over time, see hours below.
//
// While collectives are slower than usual: the time that the job's ranks spend in them (rate of their durations, a number of
// GPUs), times what of it they would not need with the usual bandwidth, 1 - bandwidth / usual. Usual is the median of the
// hour before, slower is what FabricBandwidthBelowNormal calls so. While FabricCollectiveStalled fires and names the network as
// what is waited for (head="network"): all processes of the job; a program that hangs does not wait for the network. It is an
// upper bound for jobs that compute meanwhile, or one of whose ranks is late. It is a lower bound for a job that is slow for
// more than half an hour or that never was quick, as then that is what is usual, and where it is not known what a stalled job
// waits for. Nothing of jobs without NCCL's profiler but their stalls.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local config = $._config,
    local s = signals(config),
    local job = config.clusterLabel + ', workload',
    local collective = job + ', collective',
    local bandwidth = 'workload:fabricpulse_collective_bandwidth_bytes_per_second:avg' + s.braces,
    groups+: [
      {
        name: 'fabricpulse-lost.rules',
        interval: config.seldomInterval,
        rules: [
          {
            record: 'workload:fabricpulse_gpus:lost',
            expr: 'count by (%(job)s) (%(processes)s and on (%(job)s) %(stalled)s) or sum by (%(job)s) (sum by (%(collective)s) (rate(%(busy)s[%(window)s])) * on (%(collective)s) (1 - (%(bandwidth)s / quantile_over_time(0.5, %(bandwidth)s[1h] offset 5m) < %(ratio)g)))' % {
              job: job,
              collective: collective,
              processes: s.series('fabricpulse_plugin_heartbeat_age_seconds'),
              stalled: s.series('ALERTS', 'alertname="FabricCollectiveStalled", alertstate="firing", head="network"'),
              busy: s.series('fabricpulse_collective_busy_seconds_total'),
              window: config.rateWindow,
              bandwidth: bandwidth,
              ratio: config.bandwidthNormalRatio,
            },
          },
        ],
      },
    ],
  },
}
