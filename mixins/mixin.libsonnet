// The fabricpulse mixin: prometheusAlerts, prometheusRules, grafanaDashboards and _config, as monitoring mixins have
// them. No dependency.
(import 'config.libsonnet') +
(import 'alerts/nic.libsonnet') +
(import 'alerts/clock.libsonnet') +
(import 'alerts/job.libsonnet') +
(import 'alerts/pipeline.libsonnet') +
(import 'rules/fabric.libsonnet') +
(import 'rules/job.libsonnet') +
(import 'dashboards/fleet.libsonnet') +
(import 'dashboards/paths.libsonnet') +
(import 'dashboards/job.libsonnet') +
(import 'dashboards/nic.libsonnet') +
(import 'dashboards/remediation.libsonnet')
