//! What the published ClockBound client makes of a segment: `clockbound-client FILE` prints status, earliest and
//! latest in ns since 1970; exits with 1 and the client's error where it refuses the segment.

use clock_bound_client::ClockBoundClient;

fn main() {
    let path = std::env::args().nth(1).expect("usage: clockbound-client FILE");
    match ClockBoundClient::new_with_path(&path).and_then(|mut client| client.now()) {
        Ok(now) => {
            let ns = [now.earliest, now.latest].map(|t| t.tv_sec() * 1_000_000_000 + t.tv_nsec());
            println!("{:?} {} {}", now.clock_status, ns[0], ns[1]);
        }
        Err(error) => {
            eprintln!("{error:?}");
            std::process::exit(1);
        }
    }
}
