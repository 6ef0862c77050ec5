// Panels on what the network costs: GPUs of the jobs of a page that it keeps waiting (rules/lost.libsonnet says how that is reckoned).
local signals = import '../signals.libsonnet';
local g = import 'panels.libsonnet';
function(config, jobs) {
  local lost = 'workload:fabricpulse_gpus:lost{%s}' % jobs,
  local job = config.clusterLabel + ', workload',
  local measured = 'workload:fabricpulse_collective_bandwidth_bytes_per_second:avg{%s}' % jobs,
  local bound = 'At most, where a job computes meanwhile or a rank is late; at least, of a job that has been slow for more than half an hour.',
  overTime:: g.timeseries('GPUs that wait for the network', 'By job: the time in collectives beyond what they take with the usual bandwidth, and all GPUs of a job that the network makes stand still. ' + bound, 'short', [
    g.query(lost, '{{workload}}'),
    g.query('0 * count(%s) unless on () count(last_over_time(%s[$__range] @ end()))' % [measured, lost], 'none of jobs that are measured'),
  ]),
  hours:: g.table(config, 'GPU-hours lost in the range', 'By job, most first. ' + bound, 'none', [
    g.query('sort_desc(sum by (%(job)s) (sum_over_time(%(lost)s[$__range])) * %(interval)g / 3600 or on (%(job)s) 0 * group by (%(job)s) (%(measured)s))' % {
      job: job,
      lost: lost,
      interval: signals(config).seconds(config.seldomInterval),
      measured: measured,
    }),
  ], [['workload', 'workload'], ['Value', 'GPU-hours']]),
}
