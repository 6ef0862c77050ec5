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
      // Of a job that only NCCL's profiler sees. Few series, none while jobs run: the raw ones are read here once.
      {
        name: 'fabricpulse-stall.rules',
        local job = c + ', workload',
        local communicator = job + ', communicator',
        local operations = s.series('fabricpulse_rank_operations_total'),
        local inside = s.series('fabricpulse_rank_operations_in_progress'),
        // The newest sample may be a scrape interval old.
        local seconds = '%ds' % (1.5 * $._config.stalledProfilerSeconds),
        local stalled = s.series('rank:fabricpulse_rank_operations:stalled'),
        rules: [
          // Collectives that have ended, of a rank that was inside one then and at each scrape since, none of which ended.
          // A window alone proves little of a job that has just begun. Of jobs over our plugin the waits of requests are
          // seen sooner, and say more.
          {
            record: 'rank:fabricpulse_rank_operations:stalled',
            expr: '%(operations)s == %(operations)s offset %(seconds)s and %(inside)s offset %(seconds)s > 0 and min_over_time(%(inside)s[%(seconds)s]) > 0 unless on (%(job)s) %(waiting)s' % {
              operations: operations,
              inside: inside,
              seconds: seconds,
              job: job,
              waiting: s.series('fabricpulse_request_waiting_seconds'),
            },
          },
          // The one rank that has ended no more than those, and is in none: it has not entered the one that others do not
          // leave. Not one of several: who of them is late is not seen. Nor where its host is inside a collective of another
          // communicator: which process that is is not seen, and of several communicators one waits for another.
          {
            record: 'rank:fabricpulse_rank_operations:not_entered',
            expr: '%(outside)s and on (%(communicator)s) count by (%(communicator)s) (%(outside)s) == 1 and on (%(job)s) count by (%(job)s) (group by (%(communicator)s) (%(stalled)s)) == 1 unless on (%(job)s, instance) (%(inside)s > 0 unless on (%(communicator)s) %(stalled)s)' % {
              outside: '(%(operations)s and %(inside)s == 0) <= on (%(communicator)s) group_left () max by (%(communicator)s) (%(stalled)s)' % {
                operations: operations,
                inside: inside,
                communicator: communicator,
                stalled: stalled,
              },
              inside: inside,
              communicator: communicator,
              stalled: stalled,
              job: job,
            },
          },
        ],
      },
    ],
  },
}
