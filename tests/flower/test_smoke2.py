import sys, pytest
sys.path.insert(0,"/tmp/w53/tests/support"); sys.path.insert(0,"/tmp/w53/tests")
import sites_over_bytes as S
from sites_over_bytes import *
def test_x(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, {"peers": str(tmp_path/"peers"), "secure_aggregation":"required"})
    for st in ("FedAvg","FedNova","Scaffold","FedAvgM",{"class_path":"FedDyn"}):
        plain = simulate(configuration(strategy=st), "sim"+str(st)[:9])
        masked = federate(configuration(strategy=st, secure_aggregation={"threshold":1.0}), "real"+str(st)[:9])
        print(S.LINES[-5:])
        assert same_bits(plain, masked)
