needs=(@needs@)
for need in "${needs[@]}"; do
    if ! grep -qs '"status": 0' "$experiments/$need"/attempt-*.ended; then
        echo "$name is not run: it needs $need, which is not done"
        exit 1
    fi
done

