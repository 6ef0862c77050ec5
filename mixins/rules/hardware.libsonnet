// Recorded: what all NICs should have alike, as numbers, and which of them differ. FabricNicOddOneOut reads it several times.
// Not of what is alike in the whole cluster, as most is, where none can differ: to give each NIC its network takes long.
local paths = import '../lib/paths.libsonnet';
local signals = import '../signals.libsonnet';
{
  prometheusRules+:: {
    local s = signals($._config),
    local p = paths($._config),
    local nic = '%s, instance, device' % $._config.clusterLabel,
    local alike = {
      MTU: 'fabricpulse_nic_link_mtu_bytes',
      PFC: 'fabricpulse_nic_pfc_priorities',
      speed: 'fabricpulse_nic_link_speed_bytes_per_second',
      'GID index': 'fabricpulse_nic_nccl_gid_index',
      'trust of DSCP': 'fabricpulse_nic_trust_dscp',
    },
    local attribute(name) = 'label_replace(max by (%(nic)s) (%(value)s unless on (%(c)s) stddev by (%(c)s) (%(value)s) == 0), "attribute", "%(name)s", "", "")' % {
      nic: nic,
      value: s.last(alike[name]),
      c: $._config.clusterLabel,
      name: name,
    },
    local name = '%s, device' % $._config.clusterLabel,
    local speed = s.last('fabricpulse_nic_link_speed_bytes_per_second'),
    groups+: [
      {
        name: 'fabricpulse-hardware.rules',
        interval: $._config.rareInterval,
        rules: [
          {
            record: 'device:fabricpulse_nic_attribute:by_network',
            expr: '(%(attributes)s) * on (%(nic)s) group_left (network) %(network)s' % {
              attributes: std.join(' or ', [attribute(name) for name in std.objectFields(alike)]),
              nic: nic,
              network: 'device:fabricpulse_nic_network:info' + s.braces,
            },
          },
          {
            // Those that are not the median of their network.
            record: 'device:fabricpulse_nic_attribute:different',
            expr: '%(known)s != on (%(group)s) group_left () quantile by (%(group)s) (0.5, %(known)s)' % {
              known: 'device:fabricpulse_nic_attribute:by_network' + s.braces,
              group: '%s, network, attribute' % $._config.clusterLabel,
            },
          },
          // Bytes/s of the links of each name, where those of all hosts with NICs in a mesh are known and the same, and of each other link that is known: a table with
          // few rows, for what is asked of slow NICs with each evaluation. One NIC whose speed nobody tells may differ: it is in neither.
          { record: 'device:fabricpulse_nic_link_speed_bytes_per_second:alike', expr: p.sameOnAllHosts(speed) },
          {
            record: 'device:fabricpulse_nic_link_speed_bytes_per_second:other',
            expr: 'max by (%s) (%s) unless on (%s) device:fabricpulse_nic_link_speed_bytes_per_second:alike%s' % [nic, speed, name, s.braces],
          },
          {
            // NICs that count for how long they wait for credits, most of them 0, and whose exporters tell of those that do: no others can be
            // compared. Only where they are most of all that count it. No rate: at scrapes of a minute it is missing after one that failed.
            record: 'cluster:fabricpulse_nic_transmit_wait_ticks:count',
            expr:
              local counted = 'present_over_time(%s[%s])' % [s.series('fabricpulse_nic_transmit_wait_ticks_total'), $._config.lastValueWindow];
              local count(series) = 'sum by (%s) (group by (%s) (%s))' % [$._config.clusterLabel, nic, series];
              '%s > 0.5 * %s' % [
                count('%s unless on (%s, job, instance) %s' % [counted, $._config.clusterLabel, s.tooOld('nic')]),
                count(counted),
              ],
          },
          {
            record: 'firmware:fabricpulse_nic_info:count',
            expr: 'sum by (%(c)s, board, firmware) (group by (%(nic)s, board, firmware) (%(info)s))' % {
              c: $._config.clusterLabel,
              nic: nic,
              info: s.last('fabricpulse_nic_info', 'firmware!=""'),
            },
          },
        ],
      },
    ],
  },
}
