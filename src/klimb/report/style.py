"""How the page looks: light and dark as the reader's system is, narrow screens, and paper."""

from __future__ import annotations

PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#17242e;--soft:#5a6a76;--line:#e4eaed;--axis:#a9b5bd;--mark:#0c6a92;--paper:#fff;
--ground:#f5f7f8;--good:#17724a;--warn:#8a5a00;--bad:#a8321f;
--sans:-apple-system,"Segoe UI",Roboto,Inter,"Noto Sans","Open Sans","Helvetica Neue","Liberation Sans",system-ui,
sans-serif;
--serif:"Iowan Old Style",Charter,"Bitstream Charter","Palatino Linotype",Palatino,P052,Georgia,serif;
--mono:ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,"Noto Sans Mono","DejaVu Sans Mono",monospace}
@media(prefers-color-scheme:dark){:root{--ink:#e3eaee;--soft:#9badb8;--line:#27343d;--axis:#52646f;--mark:#5ab8dc;
--paper:#131c22;--ground:#0c1317;--good:#5cc596;--warn:#e0b04f;--bad:#f08d78}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 var(--sans)}
main{max-width:60rem;margin:0 auto;padding:2.6rem 1.5rem 4rem}
header{margin-bottom:1.6rem}
.brand{display:flex;align-items:center;gap:.45rem;margin:0 0 1.5rem;color:var(--soft);font-size:.88rem}
.brand svg{width:2rem;height:1.2rem;color:var(--mark)} .brand span{color:var(--ink);font-weight:650}
h1,h2{font-family:var(--serif);font-weight:600;line-height:1.2;letter-spacing:-.005em;text-wrap:balance}
h1{font-size:clamp(1.7rem,1.2rem + 2.2vw,2.5rem);margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.42rem;margin:0 0 .2rem} h3{font-size:.95rem;font-weight:650;margin:1.4rem 0 .4rem}
.formula{font-family:var(--mono);letter-spacing:-.01em;overflow-wrap:anywhere;margin:0 0 .5rem}
h1.formula{font-weight:550;font-size:clamp(1.2rem,.9rem + 1.7vw,1.8rem);line-height:1.35}
.sub,.lead,.soft,figcaption{color:var(--soft)} .sub{margin:0} .lead{margin:0 0 1rem;max-width:50rem}
section{margin-top:2.9rem}
.verdict{display:flex;gap:1rem;margin:0 0 1.2rem;padding:1rem 1.2rem;background:var(--paper);
border:1px solid var(--line);border-left:5px solid var(--tone,var(--axis));border-radius:8px}
.verdict p{margin:0} .verdict .soft{margin-top:.25rem;font-size:.93rem}
.verdict strong{color:var(--tone,var(--ink))} .trust,.verified{--tone:var(--good)} .corrected{--tone:var(--warn)}
.doubt{--tone:var(--bad)}
.sign{flex:none;width:1.75rem;height:1.75rem;fill:var(--tone,var(--soft))}
.sign .cut{fill:none;stroke:var(--paper);stroke-width:2.4;stroke-linecap:round;stroke-linejoin:round}
.sign .open{fill:none;stroke:var(--soft);stroke-width:2} .sign .line{stroke:var(--soft);stroke-width:2}
details{margin-top:.6rem;font-size:.93rem} summary{cursor:pointer;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));margin:0;background:var(--paper);
border:1px solid var(--line);border-radius:8px;overflow:hidden}
.tiles>div{padding:.85rem 1.2rem;box-shadow:-1px -1px 0 var(--line)} dt{color:var(--soft);font-size:.84rem} dd{margin:0}
.tiles b{display:block;font-size:1.42rem;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:.82rem}
.scroll{overflow-x:auto;background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:.5rem .4rem}
.fit{width:fit-content;max-width:100%} .fit th,.fit td{padding-left:1.1rem;padding-right:1.1rem}
table{border-collapse:collapse;width:100%;font-size:.93rem;font-variant-numeric:tabular-nums lining-nums}
th,td{padding:.36rem .8rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left} thead th{color:var(--soft);font-weight:500;font-size:.84rem}
tbody th{font-weight:550;max-width:19rem;overflow:hidden;text-overflow:ellipsis}
tbody tr{border-top:1px solid var(--line)}
.forest .strip{width:34%;min-width:11rem;padding:0 .3rem;text-align:center} .forest tfoot td{padding-top:0}
.forest tbody td:nth-child(3){font-weight:600} .forest tfoot tr{border-top:1px solid var(--line)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21.5rem),1fr));gap:1.1rem;align-items:start}
figure{margin:0;padding:1rem 1.1rem .8rem;background:var(--paper);border:1px solid var(--line);border-radius:8px;
break-inside:avoid}
figcaption{font-size:.84rem;margin-top:.55rem;line-height:1.4}
.single figure{display:grid;grid-template-columns:minmax(0,27rem) minmax(10rem,1fr);gap:0 2rem;align-items:center}
.grid.single{grid-template-columns:1fr} .single figcaption{font-size:.93rem}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr));gap:0 2.4rem}
.facts{margin:0} .facts>div{display:flex;justify-content:space-between;gap:1.2rem;padding:.34rem 0;
border-top:1px solid var(--line)} .facts>div:first-child{border-top:0}
.facts dt{font-size:.93rem} .facts dd{text-align:right;font-size:.93rem;overflow-wrap:anywhere;
font-variant-numeric:tabular-nums}
.short{max-width:28rem} figure h3{margin:.1rem 0 .6rem} figure table{margin:0 -.5rem;width:calc(100% + 1rem)}
figure th,figure td{padding-left:.5rem;padding-right:.5rem}
ul{padding-left:1.1rem;margin:.2rem 0;font-size:.93rem}
pre{margin:0 0 1rem;padding:1rem 1.2rem;overflow-x:auto;background:var(--paper);border:1px solid var(--line);
border-radius:8px;font:.86rem/1.6 var(--mono)}
:focus-visible{outline:2px solid var(--mark);outline-offset:2px}
@media(max-width:36rem){main{padding:1.4rem .9rem 3rem} section{margin-top:2.3rem}
.tiles{grid-template-columns:1fr 1fr} .tiles>div{padding:.7rem .9rem}
.verdict{padding:.9rem 1rem;gap:.8rem} th,td{padding:.36rem .55rem} .forest .strip{min-width:9.5rem}
.forest .chart{font-size:16px}
.forest tbody th{position:sticky;left:0;background:var(--paper);max-width:7.2rem} .scroll{padding:.3rem 0}
figure{padding:.8rem .7rem .7rem} .single figure{display:block}}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--line:#ccc;--axis:#888;--mark:#0b5273;--paper:#fff;
--ground:#fff;--good:#0d5a38;--warn:#6b4500;--bad:#8c2413}
@page{margin:16mm 15mm} body{font-size:10.5pt;background:#fff} main{max-width:none;padding:0}
section{margin-top:1.5rem} h2,h3,.lead{break-after:avoid} tr,.verdict,.tiles{break-inside:avoid}
.grid{grid-template-columns:1fr 1fr;gap:.6rem} pre{break-inside:avoid} figure{padding:.5rem .6rem}
figcaption,figure table{font-size:.76rem} figure th,figure td{padding:.2rem .3rem}
.single figure{grid-template-columns:minmax(0,22rem) 1fr} details .facts{columns:2;column-gap:2rem}
th,td{padding-top:.22rem;padding-bottom:.22rem} .scroll{overflow:visible} pre{white-space:pre-wrap}
details::details-content{content-visibility:visible}
summary{display:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""".strip()
