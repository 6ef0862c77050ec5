// Recorded per NIC: what all NICs of a network should have alike, as numbers. FabricNicOddOneOut reads it several times.
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local nic = '%s, instance, device' % $._config.clusterLabel,
    local alike = {
      MTU: 'fabricpulse_nic_link_mtu_bytes',
      speed: 'fabricpulse_nic_link_speed_bytes_per_second',
      'GID index': 'fabricpulse_nic_nccl_gid_index',
      'trust of DSCP': 'fabricpulse_nic_trust_dscp',
    },
    local attribute(name) = 'label_replace(max by (%s) (%s), "attribute", "%s", "", "")' % [nic, s.last(alike[name]), name],
    groups+: [
      {
        name: 'fabricpulse-hardware.rules',
        interval: $._config.slowInterval,
        rules: [
          {
            record: 'device:fabricpulse_nic_attribute:by_network',
            expr: '(%(attributes)s) * on (%(nic)s) group_left (network) group by (%(nic)s, network) (%(network)s)' % {
              attributes: std.join(' or ', [attribute(name) for name in std.objectFields(alike)]),
              nic: nic,
              network: s.last('fabricpulse_nic_connected'),
            },
          },
        ],
      },
    ],
  },
}
