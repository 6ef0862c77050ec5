// The fabricpulse mixin: prometheusAlerts, prometheusRules, grafanaDashboards and _config, as monitoring mixins have
// them. No dependency.
(import 'config.libsonnet') +
(import 'alerts/nic.libsonnet') +
(import 'alerts/clock.libsonnet') +
(import 'alerts/job.libsonnet') +
(import 'alerts/contention.libsonnet') +
(import 'alerts/path.libsonnet') +
(import 'alerts/fault.libsonnet') +
(import 'alerts/hardware.libsonnet') +
(import 'alerts/summary.libsonnet') +
(import 'alerts/pipeline.libsonnet') +
(import 'rules/fabric.libsonnet') +
(import 'rules/job.libsonnet') +
(import 'rules/flow.libsonnet') +
(import 'rules/slo.libsonnet') +
(import 'rules/path.libsonnet') +
(import 'rules/hardware.libsonnet') +
(import 'rules/nic.libsonnet') +
(import 'rules/daemon.libsonnet') +
(import 'rules/lost.libsonnet') +
(import 'dashboards/now.libsonnet') +
(import 'dashboards/fleet.libsonnet') +
(import 'dashboards/paths.libsonnet') +
(import 'dashboards/job.libsonnet') +
(import 'dashboards/contention.libsonnet') +
(import 'dashboards/nic.libsonnet') +
(import 'dashboards/remediation.libsonnet') +
(import 'dashboards/clock.libsonnet') +
(import 'dashboards/pipeline.libsonnet') +
// Last, as it adds to each alert which panel it opens.
(import 'lib/links.libsonnet')
