package replication

import "testing"

func TestCreateSlotCommand_IsWhatEachVersionKnows(t *testing.T) {
	for _, tc := range []struct {
		major int
		spec  SlotSpec
		want  string
	}{
		{13, SlotSpec{Name: "s", Failover: true}, `CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput EXPORT_SNAPSHOT`},
		{14, SlotSpec{Name: "s", Temporary: true}, `CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT`},
		{15, SlotSpec{Name: "s"}, `CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'export')`},
		{16, SlotSpec{Name: "s", Failover: true}, `CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT 'export')`},
		{18, SlotSpec{Name: `a"b`, Failover: true}, `CREATE_REPLICATION_SLOT "a""b" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)`},
		{18, SlotSpec{Name: "s", Temporary: true}, `CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')`},
	} {
		if got := createSlotCommand(tc.major, tc.spec); got != tc.want {
			t.Errorf("%d: got %s, want %s", tc.major, got, tc.want)
		}
	}
	for version, want := range map[string]string{"15.18 (Debian 15.18-1)": "15", "18beta1": "18", "17": "17", "": ""} {
		if got := leadingDigits(version); got != want {
			t.Errorf("%q: got %q", version, got)
		}
	}
}
