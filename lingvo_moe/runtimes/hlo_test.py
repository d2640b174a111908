from lingvo_moe.runtimes import hlo

# Written by hand in the notations that XLA's CPU, GPU and TPU back ends print.
PROGRAM = """\
HloModule step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %sum = f32[] add(%a, %b)
}

%body (state: (s32[], f32[6])) -> (s32[], f32[6]) {
  %p = f32[6]{0} collective-permute(%x), channel_id=4, source_target_pairs={{0,1},{1,0}}
  ROOT %t = (s32[], f32[6]{0}) tuple(%i, %p)
}

ENTRY %main (x: f32[6]) -> f32[6] {
  %all-to-all.1 = bf16[1,4,3]{2,1,0:T(8,128)} all-to-all(%x), replica_groups=[1,4]<=[4], \
dimensions={1}, metadata={op_name="jit(step)/dispatch/einsum" stack_frame_id=2}
  %all-reduce.7 = (f32[5]{0}, pred[3]{0}, s4[8]) all-reduce(%x, /*index=1*/%y, %z), \
replica_groups=mesh['a'=2,'b'=2] {'a'}, to_apply=%add
  %ag = (f32[3,2]{1,0}, f32[6,2]{1,0}) all-gather-start(%x), replica_groups={{0,1},{2,3}}
  %agd = f32[6,2]{1,0} all-gather-done(%ag)
  %rs = f32[3]{0} reduce-scatter(%x), replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add
  %w = (s32[], f32[6]) while(%i), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"7"}}
  ROOT %r = f32[6]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}
"""


def test_every_notation():
    permute, to_all, reduce, gather, scatter, last = hlo.collectives(PROGRAM)
    assert permute == hlo.Collective(
        kind="collective-permute", bytes=24, groups=((0, 1), (1, 0)), op_name="", times=7
    )
    assert to_all == hlo.Collective(
        kind="all-to-all", bytes=24, groups=((0, 1, 2, 3),), op_name="jit(step)/dispatch/einsum"
    )
    # 5 float32, 3 bool of a byte, 8 half bytes; devices (a, b) = 2a + b, groups along a.
    assert (reduce.bytes, reduce.groups) == (20 + 3 + 4, ((0, 2), (1, 3)))
    # What comes out, not what goes in; the -done is no second collective.
    assert (gather.kind, gather.bytes, gather.groups) == ("all-gather", 48, ((0, 1), (2, 3)))
    # Groups of two: each puts 6 floats in and takes 3 out. [[0,1],[2,3]] transposed.
    assert (scatter.bytes, scatter.groups) == (24, ((0, 2), (1, 3)))
    assert (last.kind, last.groups) == ("all-reduce", ())


def test_totals():
    found = hlo.collectives(PROGRAM)
    assert hlo.count(found) == {
        "all-gather": 1,
        "all-reduce": 2,
        "all-to-all": 1,
        "collective-permute": 7,
        "reduce-scatter": 1,
    }
    assert hlo.total_bytes(found)["collective-permute"] == 7 * 24
    assert hlo.total_bytes(found)["all-reduce"] == 27 + 24


def test_loops_in_loops_multiply():
    text = """\
%inner (s: f32[2]) -> f32[2] {
  ROOT %r = f32[2]{0} all-reduce(%s), replica_groups={}
}
%outer (s: f32[2]) -> f32[2] {
  ROOT %w = f32[2] while(%s), body=%inner, backend_config={"known_trip_count":{"n":"3"}}
}
ENTRY %main (s: f32[2]) -> f32[2] {
  %c = f32[2] conditional(%s), branch_computations={%outer, %outer}
  ROOT %w = f32[2] while(%c), body=%outer, backend_config={"known_trip_count":{"n":"5"}}
}
"""
    assert [c.times for c in hlo.collectives(text)] == [3 * (2 + 5)]


def test_the_length_of_a_loop_from_its_condition():
    text = """\
%test (s: (s32[], f32[2])) -> pred[] {
  %limit.7 = s32[]{:T(256)} constant(9)
  %i.1 = s32[]{:T(256)} get-tuple-element(%s), index=0
  ROOT %Less = pred[]{:T(1024)} compare(%i.1, %limit.7), direction=LT, metadata={op_name="Less"}
}
%body (s: (s32[], f32[2])) -> (s32[], f32[2]) {
  %r = f32[2]{0} all-reduce(%s), replica_groups={}
}
ENTRY %main (s: f32[2]) -> f32[2] {
  ROOT %w = (s32[], f32[2]) while(%s), condition=%test, body=%body
}
"""
    assert [c.times for c in hlo.collectives(text)] == [9]
    unknown = text.replace("direction=LT", "direction=GE")  # not one of ours
    assert [c.times for c in hlo.collectives(unknown)] == [1]


def test_mesh_of_several_axes():
    text = " %r = f32[1] all-reduce(%x), replica_groups=mesh['a'=2,'b'=1,'c'=3] {'a','c'}"
    (found,) = hlo.collectives("ENTRY %main (x: f32[1]) -> f32[1] {\n" + text + "\n}")
    assert found.groups == ((0, 1, 2, 3, 4, 5),)
    text = text.replace("{'a','c'}", "{'c','a'}")
    (found,) = hlo.collectives("ENTRY %main (x: f32[1]) -> f32[1] {\n" + text + "\n}")
    assert found.groups == ((0, 3, 1, 4, 2, 5),)
    # 0 … 5 in two rows, read by columns: 0, 3 | 1, 4 | 2, 5 along a, b, c = 3, 1, 2.
    text = text.replace(
        "mesh['a'=2,'b'=1,'c'=3] {'c','a'}",
        "mesh['a'=3,'b'=1,'c'=2], device_ids=([2,3]T(1,0)) {'a'}",
    )
    for ids in ("[2,3]T(1,0)", "0,3,1,4,2,5"):
        of = text.replace("[2,3]T(1,0)", ids)
        (found,) = hlo.collectives("ENTRY %main (x: f32[1]) -> f32[1] {\n" + of + "\n}")
        assert found.groups == ((0, 1, 2), (3, 4, 5))
