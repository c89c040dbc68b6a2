# The HTML page in a real browser, headless: it renders, hovering shows the values of the curves and bars, light and dark differ, it
# prints, nothing is asked of a network and nothing is said on the console.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
browser=
for b in chromium-headless-shell chromium; do
    [ -n "$browser" ] || ! command -v "$b" >/dev/null || browser=$b
done
[ -n "$browser" ] || { echo "no chromium (package chromium-headless-shell)"; exit 77; }
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
export LC_ALL=C.UTF-8 HOME="$dir"

for run in 'without<img src=x onerror=alert(1)>' with; do
    mkdir "$dir/$run"
    echo '{"version":1,"device":"</script><script>throw 1</script>","batch_images":8}' >"$dir/$run/meta.json"
    for i in 1 2 3 4 5 6 7 8 9 10; do
        loss=$((11 - i))
        [ $i != 5 ] || loss=NaN
        echo "{\"step\":$i,\"epoch\":$((i / 4)),\"loss\":$loss,\"cosine\":0.5,\"images_per_s\":$((80 + i)),\"step_ms\":100,\"cards\":[{\"rank\":0,\"peak_bytes\":3145728,\"classes\":{\"weights\":2097152,\"optimizer\":1048576}}]}"
    done >"$dir/$run/metrics.jsonl"
done
"$MEOPT" compare "$dir/without<img src=x onerror=alert(1)>" "$dir/with" --html "$dir/page.html" >/dev/null 2>&1

browse() { # PAGE ARGUMENT...: what the browser says
    page=$1
    shift
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --enable-logging=stderr --user-data-dir="$dir/profile" \
        --log-net-log="$dir/net.json" --host-resolver-rules='MAP * ~NOTFOUND' --window-size=1200,1600 "$@" "file://$page" 2>>"$dir/console"
}
# The test's own script comes after the page's: it moves the pointer and writes down what the page shows.
sed 's|</body>||; s|</html>||' "$dir/page.html" >"$dir/hover.html"
cat >>"$dir/hover.html" <<'END'
<script>
const found = {};
const move = (e, x, y) => e.dispatchEvent(new MouseEvent('mousemove', {clientX: x, clientY: y, bubbles: true}));
const shown = () => getComputedStyle(document.getElementById('tip')).display === 'none' ? null : document.getElementById('tip').textContent;
for (const id of ['iteration-loss', 'epoch-loss', 'throughput']) {
  const s = document.getElementById(id), r = s.getBoundingClientRect();
  move(s, r.left + r.width * 0.45, r.top + r.height / 2);
  found[id] = shown();
  move(s, r.left + 1, r.top + r.height / 2);
  found[id + ' outside'] = shown();
}
const bar = document.querySelector('#memory rect[data-tip]'), b = bar.getBoundingClientRect();
move(bar, b.left + 2, b.top + 2);
found.memory = shown();
found.size = ['iteration-loss', 'epoch-loss', 'throughput', 'memory'].map(id => document.getElementById(id).getBoundingClientRect().width > 300);
found.curves = document.querySelectorAll('#iteration-loss path.s').length;
found.images = document.querySelectorAll('img').length;
found.requests = performance.getEntriesByType('resource').map(e => e.name);
found.background = getComputedStyle(document.body).backgroundColor;
const out = document.createElement('pre');
out.id = 'found';
out.textContent = JSON.stringify(found);
document.body.append(out);
</script></body></html>
END
browse "$dir/hover.html" --dump-dom >"$dir/dom.html" || fail "the browser: $(tail -3 "$dir/console")"
python3 - "$dir" <<'END' || fail "what the page shows"
import html, json, re, sys
d = sys.argv[1]
f = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', open(d + "/dom.html").read(), re.S).group(1)))
name = "without<img src=x onerror=alert(1)>"
assert f["iteration-loss"] == name + "  step 5  NaN\nwith  step 5  NaN" or f["iteration-loss"] == name + "  step 4  7\nwith  step 4  7", f
assert f["throughput"].startswith(name + "  step "), f
assert f["epoch-loss"].split("  ")[1].startswith("epoch "), f
assert f["memory"] == name + ": weights 2.0 MiB", f
assert all(f[k + " outside"] is None for k in ("iteration-loss", "epoch-loss", "throughput")), f
assert all(f["size"]) and f["curves"] >= 4 and f["images"] == 0 and f["requests"] == [], f
net = open(d + "/net.json").read()
hosts = [u for u in re.findall(r'"url":"(https?://[^"]*)"', net)]
assert not hosts, hosts
said = [l for l in open(d + "/console") if "CONSOLE" in l]
assert not said, said
END
browse "$dir/hover.html" --blink-settings=preferredColorScheme=0 --dump-dom >"$dir/dark.html"
grep -q 'rgb(22, 24, 28)' "$dir/dark.html" || fail "no dark page where dark is preferred"
grep -q 'rgb(255, 255, 255)' "$dir/dom.html" || fail "no light page where light is preferred"
# a phone and a desk: nothing is cut at the side, letters of the plots stay readable
cat >"$dir/measure" <<'END'
<script>
const out = document.createElement('pre'), text = document.querySelector('#memory text'), box = e => e.getBoundingClientRect();
const wide = [...document.querySelectorAll('body *')].filter(e => box(e).width && box(e).right > innerWidth + 1 && !e.closest('svg')).map(e => e.tagName + e.className);
const scale = box(document.getElementById('memory')).width / 720;
out.id = 'found';
out.textContent = JSON.stringify({wide, letters: parseFloat(getComputedStyle(text).fontSize) * scale, page: document.scrollingElement.scrollWidth, inner: innerWidth});
document.body.append(out);
</script></body></html>
END
sed 's|</body>||; s|</html>||' "$dir/page.html" | cat - "$dir/measure" >"$dir/measured.html"
for width in 400 1280; do
    browse "$dir/measured.html" --window-size=$width,900 --dump-dom >"$dir/dom.html"
    python3 - "$dir/dom.html" $width <<'END' || fail "the page at $width pixels"
import html, json, re, sys
f = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', open(sys.argv[1]).read(), re.S).group(1)))
assert f["inner"] == int(sys.argv[2]) and f["page"] <= f["inner"] and not f["wide"] and f["letters"] > 8, f
END
done
browse "$dir/page.html" --print-to-pdf="$dir/page.pdf" >/dev/null
[ "$(head -c 5 "$dir/page.pdf")" = "%PDF-" ] || fail "the page does not print"
browse "$dir/page.html" --screenshot="$dir/page.png" >/dev/null
[ "$(wc -c <"$dir/page.png")" -gt 20000 ] || fail "the picture is empty"
! grep CONSOLE "$dir/console" || fail "the console is not silent"
