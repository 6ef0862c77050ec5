// Recorded per daemon: when it was last scraped, for a day. Each evaluation reads the one before, because the samples of
// a day are too many to read. And those that do not answer.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local host = $._config.clusterLabel + ', instance',
    local up = s.series('up', $._config.jobSelector),
    local record = 'daemon:fabricpulse_build_info:last_seen_timestamp_seconds',
    groups+: [
      {
        name: 'fabricpulse-daemon.rules',
        interval: $._config.slowInterval,
        rules: [
          {
            record: record,
            expr: 'time() * group by (%(c)s, job, instance, daemon) (%(info)s) or last_over_time(%(record)s[15m]) > time() - 86400' % {
              c: $._config.clusterLabel,
              info: s.series('fabricpulse_build_info'),
              record: record + s.braces,
            },
          },
        ],
      },
      {
        // FabricExporterDown and FabricHostDown: of all targets three reads, which each evaluation of both would repeat.
        name: 'fabricpulse-up.rules',
        interval: $._config.flowInterval,
        rules: [
          { record: 'daemon:fabricpulse_up:down', expr: s.down },
          // 1 where a daemon has answered lately.
          { record: 'host:fabricpulse_up:max', expr: 'max by (%s) (max_over_time(%s[%s]))' % [host, up, $._config.exporterDownFor] },
          // 1 where one of a cluster answers now. A maximum over time would say so of a cluster that Prometheus has just lost.
          { record: 'cluster:fabricpulse_up:max', expr: 'max by (%s) (%s)' % [$._config.clusterLabel, up] },
        ],
      },
    ],
  },
}
