#include "schedule/pictures/html_assets.h"

namespace stagecoach::schedule {

// A table that is wider than its card scrolls: its background has a shadow at both edges, which two
// layers that scroll along cover where there is nothing beyond.
const char kPageStyle[] = R"css(
:root{color-scheme:light dark;--page:#f6f8fa;--card:#fff;--ink:#1b2430;--mute:#5d6979;--line:#dbe1e9;--accent:#2f6fd0;--edge:#1b243038}
@media (prefers-color-scheme:dark){:root{--page:#0b0f15;--card:#11161e;--ink:#e4e9f0;--mute:#98a4b5;--line:#2c3644;--accent:#79a9f5;--edge:#98a4b559}}
*{box-sizing:border-box}
body{margin:0;padding:20px 24px;background:var(--page);color:var(--ink);font:14px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px 28px;margin:0 0 14px}
h1{font-size:20px;line-height:1.2;font-weight:650;margin:0;overflow-wrap:anywhere}
.facts{display:flex;flex-wrap:wrap;gap:4px 22px;margin:0}
.facts div{display:flex;gap:7px;align-items:baseline}
dt{color:var(--mute)}dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.bar{display:flex;flex-wrap:wrap;align-items:center;gap:8px 18px;padding:9px 14px;border-bottom:1px solid var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;flex:1 1 380px}
.legend span{display:inline-flex;align-items:center;gap:6px;white-space:nowrap}
.legend svg{display:block;border-radius:3px}
.tools{display:flex;flex-wrap:wrap;align-items:center;gap:8px 12px}
.tools label{display:inline-flex;align-items:center;gap:6px;cursor:pointer}
.tools input{margin:0;accent-color:var(--accent)}
.buttons{display:inline-flex;border:1px solid var(--line);border-radius:7px;overflow:hidden}
.buttons button{appearance:none;border:0;border-left:1px solid var(--line);background:none;color:inherit;font:inherit;min-width:32px;height:28px;padding:0 9px;cursor:pointer}
.buttons button:first-child{border-left:0}
.buttons button:hover{background:var(--page)}
button:focus-visible,#chart:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
#chart{display:block;width:100%;touch-action:pan-y;cursor:grab;user-select:none;-webkit-user-select:none;font-size:12px}
#chart.dragging{cursor:grabbing}
#chart text{pointer-events:none}
#tip{position:fixed;z-index:2;pointer-events:none;max-width:340px;padding:8px 11px;border:1px solid var(--line);border-radius:8px;background:var(--card);box-shadow:0 6px 24px #0003;font-size:13px;font-variant-numeric:tabular-nums}
#tip b{display:block;margin-bottom:2px}
#tip table{border-spacing:0;width:100%}#tip td{padding:0}#tip td:first-child{color:var(--mute);padding-right:12px}#tip td:last-child{text-align:right}
.beside{display:flex;flex-wrap:wrap;gap:14px 28px;align-items:flex-start;margin:16px 0}
.scroll{max-width:100%;max-height:75vh;overflow:auto;background:linear-gradient(90deg,var(--card) 40%,transparent) 0 0/36px 100% no-repeat local,linear-gradient(270deg,var(--card) 40%,transparent) 100% 0/36px 100% no-repeat local,linear-gradient(90deg,var(--edge),transparent) 0 0/16px 100% no-repeat,linear-gradient(270deg,var(--edge),transparent) 100% 0/16px 100% no-repeat,var(--card)}
.scroll table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.scroll th,.scroll td{padding:5px 16px;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}
.scroll th{position:sticky;top:0;z-index:1;background:var(--card);box-shadow:inset 0 -1px var(--line);border-top:0;color:var(--mute);font-weight:500}
.scroll tbody tr:first-child td{border-top:0}
.scroll .left{text-align:left}
.help{color:var(--mute);margin:0;flex:1;min-width:240px}
kbd{font:inherit;font-size:12px;border:1px solid var(--line);border-radius:4px;padding:0 5px;background:var(--card)}
@media print{body{padding:0}.tools,.help{display:none}.scroll{max-height:none}}
)css";

}  // namespace stagecoach::schedule
