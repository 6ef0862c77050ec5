// NICs as the probe mesh sees them: what counts is whether packets pass, not what the driver says of the link.
local lib = import '../lib/alerts.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusAlerts+:: {
    local config = $._config,
    local s = signals(config),
    groups+: [
      lib.group(config, 'nic', [
        // The mesh exporter posts this alert to Alertmanager itself, in less than a second, with these same labels:
        // both become one alert. So no `for` here, which would resolve what the exporter has just raised.
        lib.alert(
          config,
          'FabricNicDisconnected',
          'critical',
          'mesh',
          s.nicConnected + ' == 0',
          'A NIC has lost the fabric.',
          'NIC {{ $labels.device }} of {{ $labels.instance }} reaches none of its peers on network {{ $labels.network }}.'
        ),
        // On the counter, because a gauge that is scraped misses what happens between two scrapes.
        lib.alert(
          config,
          'FabricNicFlapping',
          'warning',
          'mesh',
          '%s >= %d' % [s.nicDisconnects(config.flapWindow), config.flapThreshold],
          'A NIC keeps losing the fabric and coming back.',
          'NIC {{ $labels.device }} of {{ $labels.instance }} on network {{ $labels.network }} was disconnected {{ $value | printf "%.0f" }} times within ' + config.flapWindow + '.',
          { keep_firing_for: config.flapKeepFiringFor, labels: { remediate: 'nccl' } }
        ),
      ]),
    ],
  },
}
