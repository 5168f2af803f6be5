"""What the tools of a node print, read back."""

from __future__ import annotations

from coordinator.doctor.facts import Gpu, gpus_in, nvlink_pairs_in, transports_in

TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tPIX\t0-47\t0\tN/A
GPU1\tNV18\t X \tNV18\tSYS\t0-47\t0\tN/A
GPU2\tNV18\tNV18\t X \tSYS\t48-95\t1\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:
  X    = Self
"""

UCX_LOG = """\
[1796083140.157706] [vm:26861:1]   +-------------+--------------------+---------------------+
[1796083140.157706] [vm:26861:1]   | probe-b intra-node cfg#1                               |
[1796083140.157706] [vm:26861:1]   | active message by ucp_am_send*(multi) from host memory |
[1796083140.157706] [vm:26861:1]   +-------------+--------------------+---------------------+
[1796083140.157706] [vm:26861:1]   |    Range    |    Description     |       Config        |
[1796083140.157706] [vm:26861:1]   |     0..8184 | short              | tcp/lo              |
[1796083140.157706] [vm:26861:1]   |  65529..inf | multi-frag copy-in | tcp/lo              |
[1796083140.221102] [vm:26861:0]   +--------+-------------+-------------------------------------------+
[1796083140.221102] [vm:26861:0]   | probe-a intra-node cfg#1                                         |
[1796083140.221102] [vm:26861:0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796083140.221102] [vm:26861:0]   +--------+-------------+-------------------------------------------+
[1796083140.221102] [vm:26861:0]   | Range  | Description |                  Config                   |
[1796083140.221102] [vm:26861:0]   | 0..inf | zero-copy   | {read}                                |
[1796083140.221102] [vm:26861:0]   +--------+-------------+-------------------------------------------+
[1796083141.217801] [vm:26861:1]   | probe-b intra-node cfg#1                                        |
[1796083141.217801] [vm:26861:1]   | active message by ucp_am_send* with reply flag from host memory |
[1796083141.217801] [vm:26861:1]   | 16516..inf | multi-frag copy-in | tcp/lo                        |
"""  # noqa: E501  as UCX 1.20 wrote it here


def test_gpus_of_nvidia_smi() -> None:
    text = "0, NVIDIA H100 80GB HBM3, 81559 MiB, 580.65.06\n1, NVIDIA H100 80GB HBM3, 81559 MiB, 580.65.06\n"  # noqa: E501
    first, second = gpus_in(text)
    assert first == Gpu(index=0, name="NVIDIA H100 80GB HBM3", memory_mib=81559, driver="580.65.06")
    assert second.index == 1


def test_pairs_that_nvlink_connects_are_counted_once() -> None:
    assert nvlink_pairs_in(TOPOLOGY) == 3
    assert nvlink_pairs_in(TOPOLOGY.replace("NV18", "SYS")) == 0


def test_the_transport_of_a_large_read_is_that_of_its_own_table() -> None:
    assert transports_in(UCX_LOG.replace("{read}", "cma/memory")) == ("cma/memory",)
    two = "50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_3:1"
    assert transports_in(UCX_LOG.replace("{read}", two)) == ("rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_3:1")
    assert transports_in("nothing that UCX says") == ()
