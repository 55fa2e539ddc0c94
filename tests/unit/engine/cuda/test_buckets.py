import pytest

from antiphon_engine.cuda.buckets import (
    MixedBucket,
    decode_buckets,
    mixed_buckets,
    smallest_bucket,
    smallest_mixed_bucket,
)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 64, 65, 255, 256, 257, 300, 512, 1000])
def test_every_number_of_rows_has_a_bucket_that_is_not_much_larger(max_rows):
    buckets = decode_buckets(max_rows)

    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == max_rows
    for num_rows in range(1, max_rows + 1):
        bucket = smallest_bucket(buckets, num_rows)
        assert num_rows <= bucket <= max(num_rows + 64, 2 * num_rows)
        assert bucket == min(size for size in buckets if size >= num_rows)


def test_more_rows_than_all_buckets_have_none():
    assert smallest_bucket((1, 2, 4), 5) is None


@pytest.mark.parametrize(("max_tokens", "max_rows"), [(16, 4), (80, 64), (512, 64), (8192, 512)])
def test_mixed_buckets_hold_all_steps_of_few_tokens(max_tokens, max_rows):
    buckets = mixed_buckets(max_tokens, max_rows)

    assert len(set(buckets)) == len(buckets)
    assert all(0 < bucket.chunk_tokens <= 2048 for bucket in buckets)
    assert all(bucket.num_tokens <= max_tokens for bucket in buckets)
    assert all(bucket.num_decode_rows <= max_rows for bucket in buckets)
    for num_decode_rows in {bucket.num_decode_rows for bucket in buckets}:
        most = min(max_tokens - num_decode_rows, 2048)
        assert smallest_mixed_bucket(
            buckets, chunk_tokens=most, num_decode_rows=num_decode_rows
        ) == MixedBucket(most, num_decode_rows)


def test_mixed_step_is_padded_by_little_more_than_its_single_tokens_are():
    buckets = mixed_buckets(8192, 256)

    for num_decode_rows, padded in ((0, 0), (3, 8), (60, 64), (200, 256)):
        for chunk_tokens in range(1, 640 - padded):
            bucket = smallest_mixed_bucket(
                buckets, chunk_tokens=chunk_tokens, num_decode_rows=num_decode_rows
            )
            assert bucket is not None
            assert bucket.num_tokens < padded + chunk_tokens + 64


def test_mixed_step_takes_the_bucket_of_fewest_tokens_that_holds_its_rows():
    buckets = tuple(MixedBucket(*size) for size in ((64, 0), (48, 16), (128, 0), (112, 16)))

    def found(chunk_tokens, num_decode_rows):
        return smallest_mixed_bucket(
            buckets, chunk_tokens=chunk_tokens, num_decode_rows=num_decode_rows
        )

    assert found(50, 0) == MixedBucket(64, 0)
    assert found(48, 1) == MixedBucket(48, 16)
    assert found(49, 16) == MixedBucket(112, 16)
    assert found(129, 0) is None
    assert found(113, 1) is None
    assert found(5, 17) is None
