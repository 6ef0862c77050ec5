// Recorded per job: its traffic by NIC, over all peers.
local flows = import '../lib/flows.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local c = $._config.clusterLabel,
    local rate(metric) = s.flowRates(metric, c + ', instance, workload, device'),
    groups+: [
      {
        name: 'fabricpulse-job.rules',
        interval: $._config.rareInterval,
        rules: [
          {
            record: 'device:fabricpulse_qp_sent_bytes:rate2m',
            expr: rate('fabricpulse_qp_sent_bytes_total'),
          },
          { record: 'device:fabricpulse_qp_received_bytes:rate2m', expr: flows($._config).receivedRateOfDevice },
          // Mean size of the messages of a job's collectives, bytes.
          { record: 'workload:fabricpulse_collective_bytes:mean', expr: flows($._config).collectiveSize },
        ],
      },
    ],
  },
}
