// Recorded per job: its traffic by NIC, over all peers.
local flows = import '../lib/flows.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local c = $._config.clusterLabel,
    local rate(metric) = s.flowRates(metric, c + ', instance, workload, device'),
    local lane = c + ', job, instance, workload, device',
    groups+: [
      {
        // Of the few lanes that failed over how often, on average of those of a NIC: one that fails once fails all its lanes.
        name: 'fabricpulse-lane.rules',
        interval: $._config.seldomInterval,
        rules: [
          {
            record: 'lane:fabricpulse_lane_failovers:increase',
            expr: '%s / on (%s) sum by (%s) (%s) > 0' % [s.laneFailoversSince($._config.laneFailoverWindow, lane), lane, lane, s.last('fabricpulse_lanes')],
          },
        ],
      },
      {
        name: 'fabricpulse-last-resort.rules',
        interval: $._config.slowInterval,
        rules: [
          {
            // Lanes of the jobs that go on over TCP on some host, whether they are up. FabricJobOnLastResort asks several things of them.
            record: 'lane:fabricpulse_lane_state:of_last_resort',
            expr: 'max by (%(lane)s) (%(lanes)s and on (%(c)s, workload) %(onTcp)s > 0)' % {
              lane: c + ', instance, workload, device',
              lanes: s.last('fabricpulse_lane_state'),
              c: c,
              onTcp: s.series('fabricpulse_lanes', 'state="last_resort"'),
            },
          },
        ],
      },
      {
        name: 'fabricpulse-lost-process.rules',
        interval: $._config.slowInterval,
        rules: [
          {
            // How many processes of a job a host had that has fewer now, or does not answer, for as long as a rank of the job waits: which rank has
            // ended stays unknown for all that time, not for processesWindow alone (FabricCollectiveStalled).
            record: 'host:fabricpulse_qp_processes:lost',
            expr:
              local job = c + ', workload';
              local processes(expr) = 'max by (%s, instance) (%s)' % [job, expr % s.series('fabricpulse_qp_processes')];
              local fewer(than) = '(%s unless %s >= %s)' % [than, processes('%s'), than];
              '(%s or %s) and on (%s) %s > %g' % [
                fewer('last_over_time(host:fabricpulse_qp_processes:lost%s[%s])' % [s.braces, $._config.processesWindow]),
                fewer(processes('max_over_time(%%s[%s])' % $._config.processesWindow)),
                job,
                s.last('fabricpulse_request_waiting_seconds'),
                $._config.stalledSeconds,
              ],
          },
        ],
      },
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
