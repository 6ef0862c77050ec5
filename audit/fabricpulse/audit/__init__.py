"""Fleet audit: is a cluster set up as it should be, and which host, NIC or path is odd."""
