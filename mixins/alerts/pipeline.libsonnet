// The watcher watched: exporters, remediation, and the path of an alert itself.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      lib.group(config, 'pipeline', [
        // max_over_time: one failed scrape is no alert, and one good scrape ends it.
        lib.alert(
          config,
          'FabricExporterDown',
          'warning',
          'exporter',
          'max_over_time(%s[%s]) == 0' % [s.series('up', config.jobSelector), config.exporterDownFor],
          'A fabricpulse daemon does not answer Prometheus.',
          '{{ $labels.job }} of {{ $labels.instance }} has not answered a scrape for ' + config.exporterDownFor + '; what it watches is not watched.'
        ),
        // Says also that `selector` or `jobSelector` fits nothing, which silences every other alert.
        lib.alert(
          config,
          'FabricNoData',
          'critical',
          'exporter',
          'absent_over_time(%s[%s])' % [s.series('fabricpulse_build_info'), config.noDataFor],
          'Prometheus has no data of any fabricpulse daemon that these rules would look at.',
          'No fabricpulse daemon has been scraped for ' + config.noDataFor + ', or the selector of the rules matches none; no other alert of fabricpulse can fire ({{ $value }}).',
        ),
        lib.alert(
          config,
          'FabricCollectorFailing',
          'warning',
          'exporter',
          s.last('fabricpulse_scrape_collector_success') + ' == 0',
          'A collector of an exporter keeps failing.',
          'Collector {{ $labels.collector }} of {{ $labels.job }} on {{ $labels.instance }} fails; its log says why.',
          { 'for': config.collectorFailingFor }
        ),
        lib.alert(
          config,
          'FabricSamplesDropped',
          'warning',
          'exporter',
          s.last('fabricpulse_exporter_dropped_samples', 'family!=""') + ' > 0',
          'An exporter leaves samples out to keep its size.',
          '{{ $labels.job }} of {{ $labels.instance }} drops {{ $value | printf "%.0f" }} samples of {{ $labels.family }}: its sample cap is too low for this host.',
          { 'for': config.collectorFailingFor }
        ),
        lib.alert(
          config,
          'FabricRemediationFailed',
          'critical',
          'remediation',
          'increase(%s[%s]) > 0' % [
            s.series('fabricpulse_remediation_actions_total', 'outcome=~"failed|refused"'),
            config.remediationFailedWindow,
          ],
          'An automatic action did not do what it should.',
          'Action {{ $labels.action }} of the remediation receiver {{ $labels.instance }} ended as {{ $labels.outcome }}; the journal has the case. A person must look.'
        ),
        lib.alert(
          config,
          'FabricRemediationBreakerTripped',
          'critical',
          'remediation',
          s.last('fabricpulse_remediation_breaker_tripped') + ' == 1',
          'Automatic actions have stopped themselves.',
          'The {{ $labels.direction }} breaker of the remediation receiver {{ $labels.instance }} has tripped: more hosts at once than it may touch. Nothing is done until a person resets it.'
        ),
        lib.alert(
          config,
          'FabricRemediationStalled',
          'critical',
          'remediation',
          '%s > %g' % [s.last('fabricpulse_remediation_heartbeat_age_seconds'), config.remediationStalledSeconds],
          'The remediation receiver answers and does not decide.',
          'The reconciler of {{ $labels.instance }} last came round {{ $value | humanizeDuration }} ago.'
        ),
        // Always fires. Point a dead man's switch at it: when it stops, alerting is broken.
        lib.alert(
          config,
          'FabricWatchdog',
          'none',
          'pipeline',
          'vector(1)',
          'Alerting works.',
          'This alert always fires ({{ $value }}); when it stops arriving, the path from Prometheus through Alertmanager is broken.'
        ),
      ]),
    ],
  },
}
