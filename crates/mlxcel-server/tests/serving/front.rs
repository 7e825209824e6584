//! What every request passes: keys, hosts, origins, numbers, media types; on every route.

use mlxcel_server::Config;

use crate::client::{Client, read_answer};
use crate::house::{House, Plan};

fn guarded() -> House {
    let plan = Plan::default();
    House::build(Plan { config: Config { api_keys: vec!["sesame".to_string()], ..plan.config }, ..plan })
}

/// Every path that the server knows, with a method that it takes there.
fn all_routes(house: &House) -> Vec<(String, String)> {
    let document = house.client.get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths").clone();
    let methods = |(path, item): (String, serde_json::Value)| {
        let methods = item.as_object().expect("methods").clone();
        methods.into_iter().map(move |(method, _)| (method.to_uppercase(), path.clone()))
    };
    paths.into_iter().flat_map(methods).collect()
}

#[test]
fn a_missing_or_wrong_key_opens_no_route_but_the_page() {
    let house = guarded();
    let routes = all_routes(&house);
    assert!(routes.len() > 8, "{routes:?}");
    for key in [None, Some("Sesame"), Some("sesam"), Some("sesamee"), Some("")] {
        let client = Client { key: key.map(str::to_string), ..house.client.clone() };
        for (method, path) in &routes {
            let path = path.replace(['{', '}'], "");
            let answer = client.request(method, &path, &[("content-type", "application/json")], b"{}");
            assert_eq!(answer.status, 401, "{method} {path} with {key:?}");
            assert!(answer.json()["error"].is_object(), "{}", answer.text());
        }
        assert_eq!(client.get("/nothing/here").status, 401, "what exists is not told either");
    }
    for path in ["/", "/page/app.js", "/page/style.css"] {
        let client = Client { key: None, ..house.client.clone() };
        assert_eq!(client.get(path).status, 200, "{path} is asked for before there is a key");
    }
    house.assert_sound();
}

#[test]
fn the_key_opens_by_both_headers() {
    let house = guarded();
    let client = Client { key: None, ..house.client.clone() };
    for header in [("x-api-key", "sesame"), ("authorization", "Bearer sesame")] {
        assert_eq!(client.request("GET", "/v1/models", &[header], b"").status, 200, "{header:?}");
    }
}

#[test]
fn errors_have_the_shape_of_the_interface() {
    let house = House::new();
    let openai = house.client.post_bytes("/v1/chat/completions", b"{").json();
    assert_eq!(openai["error"]["type"], "invalid_request_error");
    let anthropic = house.client.get("/v1/messages").json();
    assert_eq!(anthropic["type"], "error");
    assert!(anthropic["error"]["message"].is_string());
    let llama = house.client.get("/nothing").json();
    assert_eq!(llama["error"]["code"], 404);
}

#[test]
fn a_request_keeps_a_sane_number_and_gets_one_otherwise() {
    let house = House::new();
    let id = |value: &str| {
        let answer = house.client.request("GET", "/health", &[("x-request-id", value)], b"");
        answer.headers["x-request-id"].clone()
    };
    assert_eq!(id("abc-123"), "abc-123");
    for odd in ["a b", "<script>", "", &"x".repeat(200)] {
        assert!(id(odd).starts_with("req_"), "{odd}");
    }
}

#[test]
fn other_origins_are_not_let_in_unless_asked_for() {
    let preflight = [
        ("origin", "https://evil.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let house = guarded();
    let answer = house.client.request("OPTIONS", "/v1/chat/completions", &preflight, b"");
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{:?}", answer.headers);
    assert_ne!(answer.status, 204);
    let plan = Plan::default();
    let cors_origins = vec!["https://good.example".to_string()];
    let house = House::build(Plan { config: Config { cors_origins, ..plan.config }, ..plan });
    let answer = house.client.request("OPTIONS", "/v1/chat/completions", &preflight, b"");
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    let good = [("origin", "https://good.example"), preflight[1], preflight[2]];
    let answer = house.client.request("OPTIONS", "/v1/chat/completions", &good, b"");
    assert_eq!((answer.status, answer.headers["access-control-allow-origin"].as_str()), (204, good[0].1));
    let answer = house.client.request("GET", "/health", &good[..1], b"");
    assert_eq!(answer.headers["access-control-allow-origin"], good[0].1);
}

#[test]
fn a_foreign_name_for_this_machine_is_refused() {
    let house = House::new();
    let status = |host: &str| {
        let request = format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        read_answer(&mut house.client.raw(request.as_bytes())).status
    };
    for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080"] {
        assert_eq!(status(host), 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080"] {
        assert_eq!(status(host), 403, "{host}");
    }
    let plan = Plan::default();
    let hosts = vec!["models.example".to_string()];
    let house = House::build(Plan { config: Config { hosts, ..plan.config }, ..plan });
    let request = "GET /health HTTP/1.1\r\nhost: models.example\r\nconnection: close\r\n\r\n";
    assert_eq!(read_answer(&mut house.client.raw(request.as_bytes())).status, 200);
}

#[test]
fn unknown_routes_and_methods_are_told_apart() {
    let house = House::new();
    assert_eq!(house.client.get("/v1/nothing").status, 404);
    assert_eq!(house.client.get("/v1/chat/completions").status, 405);
    assert_eq!(house.client.request("DELETE", "/health", &[], b"").status, 405);
    assert_eq!(house.client.request("BREW", "/health", &[], b"").status, 405);
    assert_eq!(house.client.get("/../../etc/passwd").status, 404);
}

#[test]
fn bodies_are_json_as_it_is() {
    let house = House::new();
    let body = br#"{"messages": [{"role": "user", "content": "A"}]}"#;
    let status =
        |headers: &[(&str, &str)]| house.client.request("POST", "/v1/chat/completions", headers, body).status;
    assert_eq!(status(&[("content-type", "application/json")]), 200);
    assert_eq!(status(&[("content-type", "application/json; charset=UTF-8")]), 200);
    assert_eq!(status(&[("content-type", "application/json; charset=utf-16")]), 415);
    assert_eq!(status(&[("content-type", "text/plain")]), 415);
    assert_eq!(status(&[]), 415);
    assert_eq!(status(&[("content-type", "application/json"), ("content-encoding", "gzip")]), 415);
}

#[test]
fn metrics_count_by_route_and_never_by_what_was_asked() {
    let house = House::new();
    (0..50).for_each(|i| drop(house.client.get(&format!("/made/up/{i}"))));
    let page = house.client.get("/metrics").text();
    assert!(page.contains("mlxcel_http_requests_total{route=\"other\",status=\"404\"} 50"), "{page}");
    assert!(!page.contains("/made"));
}
